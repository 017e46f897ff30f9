import gc

import pytest

from phaze_opt.garbage import collected_later


def test_the_collector_waits_and_goes_on() -> None:
    """Also after an error, inside another such block, and where it was off before."""
    assert gc.isenabled()
    with collected_later():
        assert not gc.isenabled()
        with pytest.raises(ValueError, match="stop"), collected_later():
            raise ValueError("stop")
        assert not gc.isenabled()
    assert gc.isenabled()
