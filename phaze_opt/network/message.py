"""What point-to-point messages cost: between neighbouring stages, and around a ring of devices."""

from __future__ import annotations

import math
from functools import lru_cache

from phaze_opt.network.cluster import Cluster, launch_s, outermost_level, units_and_extents
from phaze_opt.network.collective import CollectiveCost, collective_terms
from phaze_opt.network.term import Term, nothing_sent
from phaze_opt.network.torus import shift_load
from phaze_opt.network.uplinks import rails_crossed, shift_slowdown


def message_over(
    cluster: Cluster, index: int, sharing: float = 1, *, through_below: bool = False
) -> Term:
    """Return the cost of a message over a level whose links several messages share.

    Parameters
    ----------
    cluster
        The network.
    index
        Of the level.
    sharing
        Messages on the busiest link.
    through_below
        Whether the message reaches the rail of its receiver through the level below.

    Returns
    -------
    term
        For the bytes of the message.
    """
    level = cluster.levels[index]
    taken = (index - through_below, index)
    sent = tuple(float(i in taken) for i in range(len(cluster.levels)))
    s_per_byte = sharing / level.link_bytes_per_s
    latency_s = launch_s(cluster, index) + level.latency_s
    if through_below:
        below = cluster.levels[index - 1]
        s_per_byte = max(s_per_byte, 1.0 / below.link_bytes_per_s)
        latency_s += below.latency_s
    return Term("message", latency_s, s_per_byte, sent, math.sqrt(s_per_byte * level.ramp_s))


def message_term(cluster: Cluster, stride: int = 1, group: int = 2) -> Term:
    """Return the cost of one message between neighbours of a pipeline.

    The slowest link between any two consecutive ranks counts; on a torus the messages of all
    devices of a stage share the links that they pass through.

    Parameters
    ----------
    cluster
        The network.
    stride
        Distance of consecutive ranks (the devices of one stage).
    group
        Ranks in the chain; a single one sends nothing.

    Returns
    -------
    term
        For the bytes that each device sends.
    """
    if group == 1:
        return nothing_sent(cluster)
    return message_at(cluster, outermost_level(group, cluster, stride), stride)


def message_at(cluster: Cluster, index: int, stride: int) -> Term:
    """Return the cost of one message over a level to the rank a stride further; `message_term`."""
    sharing = messages_per_link(cluster, index, stride)
    through_below = rails_crossed(cluster, index, stride) > 1
    return message_over(cluster, index, sharing, through_below=through_below)


def send_receive_s(size_bytes: float, cluster: Cluster, stride: int = 1, group: int = 2) -> float:
    """Return the time of one message of some bytes per device; see `message_term`."""
    return message_term(cluster, stride, group).seconds(size_bytes)


@lru_cache(maxsize=4096)
def ring_cost(
    size_bytes: float, messages: int, group: int, cluster: Cluster, stride: int = 1
) -> CollectiveCost:
    """Return the cost of messages to the next device of a ring, one after another.

    All devices send at once, and the slowest link between neighbours counts.

    Parameters
    ----------
    size_bytes
        Of all messages of a device.
    messages
        How many it sends.
    group, cluster, stride
        As for `message_term`.
    """
    term = message_term(cluster, stride, group)
    sent = tuple(share * size_bytes for share in term.sent_per_byte)
    return CollectiveCost("ring", messages * term.seconds(size_bytes / messages), sent)


def messages_per_link(cluster: Cluster, index: int, stride: int) -> float:
    """Return how many messages share a link when every rank sends to the one a stride further.

    Of leaf switches, how many times longer a message takes than one that is alone; every chain is
    counted as if it left its leaf.

    Parameters
    ----------
    cluster
        The network.
    index
        Of the level that the messages take.
    stride
        Distance of sender and receiver in ranks.
    """
    if not cluster.levels[index].is_direct:
        return shift_slowdown(cluster, index, stride)
    below, extents = units_and_extents(cluster, index)
    return shift_load(extents, -(-stride // below))


def split_message_terms(whole: Term, group: int, cluster: Cluster) -> list[Term]:
    """Return the cost of a message that a tensor-parallel group sends in parts.

    Every device of the sending group holds the same tensor and sends a part of it; the receiving
    group gathers the parts (D. Narayanan et al., SC 2021, section 4.1).

    Parameters
    ----------
    whole
        The message as every device sends all of it.
    group
        Devices of each group; they are neighbours.
    cluster
        The network.

    Returns
    -------
    terms
        For the bytes of the whole tensor, one for each way to gather.
    """
    return [
        Term(
            f"split, {gather.algorithm}",
            whole.latency_s + gather.latency_s,
            whole.s_per_byte / group + gather.s_per_byte,
            tuple(
                sent / group + gathered
                for sent, gathered in zip(whole.sent_per_byte, gather.sent_per_byte, strict=True)
            ),
            whole.s_per_sqrt_byte / math.sqrt(group) + gather.s_per_sqrt_byte,
        )
        for gather in collective_terms("all_gather", group, cluster)
    ]
