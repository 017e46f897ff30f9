"""Why a point is as fast as it is, and what would change that.

Takes what `phaze_opt.evaluation.evaluate` takes and gives an `explain.Explanation`.

- `binding`: the critical path of a pass, and the resource that binds each step of it.
- `stage`: where the time of the busiest stage goes, what communication is hidden, what fills the
  memory of the fullest stage.
- `changes`: points with a tenth more of one resource, or more communication beside compute;
  `gains`: what they bring.
- `host`: passes that wait for the host.
- `steps`, `fixes`: what would make a point fit that does not, each change tried.
- `assumptions`: numbers that a chip's file leaves out and that decide the answer.
- `explain`: all but the last.
"""
