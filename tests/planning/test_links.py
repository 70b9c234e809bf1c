"""Links and rings: what joins GPUs by default and by --link, and how long exchanges take."""

from __future__ import annotations

import pytest

from ladecli import profiles
from ladecli.errors import UsageError
from ladecli.planning.links import fabric


@pytest.mark.parametrize(
    ("gpu", "wanted", "within", "between"),
    [
        ("a100", None, ("nvlink", 300), ("ethernet", 12.5)),
        ("h100", None, ("nvlink", 450), ("ethernet", 12.5)),
        ("l4", None, ("pcie", 32), ("ethernet", 12.5)),
        ("t4", None, ("pcie", 16), ("ethernet", 12.5)),
        ("mine", None, ("pcie", 32), ("ethernet", 12.5)),
        ("h100", "pcie", ("pcie", 64), ("ethernet", 12.5)),
        ("l4", "NVLink", ("nvlink", 300), ("ethernet", 12.5)),
        ("a100", "infiniband", ("nvlink", 300), ("infiniband", 25)),
        ("a100", "infiniband, pcie", ("pcie", 32), ("infiniband", 25)),
        ("a100", "50", ("nvlink", 300), ("link", 50)),
        ("a100", "100,100", ("link", 100), ("link", 100)),
        ("a100", "pcie,1.25", ("pcie", 32), ("link", 1.25)),
    ],
)
def test_what_joins_gpus_of_several_nodes(
    gpu: str, wanted: str | None, within: tuple[str, float], between: tuple[str, float]
) -> None:
    found = fabric(gpu, 8, [1, 16], wanted)
    told = [(link.name, link.bandwidth / 1e9) for link in (found.within, found.between)]
    assert told == [within, between]


def test_a_number_is_the_link_of_the_only_node() -> None:
    found = fabric("a100", 8, [1, 8], "5")
    assert (found.within.bandwidth, found.within.source) == (5e9, "given by --link")


KNOWN = (
    "use nvlink, pcie, infiniband, ethernet, a number of GB/s, or two with a comma: within a node,"
    " between nodes"
)
TWICE = (
    "names more than one link for one place; give one within a node, and with a comma one between"
    " nodes"
)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("token ring", f"unknown link 'token ring'; {KNOWN}"),
        ("", f"unknown link ''; {KNOWN}"),
        ("0", f"unknown link '0'; {KNOWN}"),
        ("-3", f"unknown link '-3'; {KNOWN}"),
        ("nan", f"unknown link 'nan'; {KNOWN}"),
        ("inf", f"unknown link 'inf'; {KNOWN}"),
        ("nvlink,", f"unknown link ''; {KNOWN}"),
        ("nvlink,pcie", f"--link nvlink,pcie {TWICE}"),
        ("1,2,3", f"--link 1,2,3 {TWICE}"),
        (
            "ethernet",
            "--link ethernet is between nodes, and 8 GPUs in nodes of 8 are one node; add --nodes"
            " or --gpus-per-node",
        ),
    ],
)
def test_bad_links(wanted: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        fabric("a100", 8, [1, 2, 8], wanted)
    assert str(error.value) == message


def test_one_gpu_waits_for_nobody() -> None:
    joined = fabric("a100", 8, [8], None)
    assert joined.gather(1e6, 1) == joined.reduce(1e6, 1) == 0


def test_small_exchanges_are_latency_and_large_ones_bandwidth() -> None:
    joined = fabric("a100", 8, [64], None)
    # NCCL's own figures for a ring of 8: 6.6 µs, and 0.6 µs for each of 14 steps.
    assert joined.reduce(1, 8) == pytest.approx(15e-6, rel=0.01)
    assert joined.gather(1, 8) == pytest.approx(10.8e-6, rel=0.01)
    sums = joined.reduce(1e9, 8)
    assert sums == pytest.approx(2 * 7 / 8 * 1e9 / (0.75 * 300e9), rel=0.02)
    # The slowest link on the way counts.
    assert joined.reduce(1e9, 16) > 10 * sums


def test_gpus_alone_in_their_nodes_meet_on_the_network_only() -> None:
    alone = fabric("a100", 1, [4], "infiniband")
    slower = fabric("t4", 1, [4], "infiniband")
    assert alone.reduce(1e6, 4) == slower.reduce(1e6, 4)
    assert [alone.nodes(gpus) for gpus in (1, 2, 4)] == [1, 2, 4]


def test_every_gpu_with_links_of_its_own_has_a_profile() -> None:
    from ladecli.planning import links

    data = links._data()
    assert {*data["gpu"], *data["pcie"]} <= set(profiles.shipped_names())
