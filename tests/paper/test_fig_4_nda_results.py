"""Figure 4: the NDA applied to the MLP: names identified with I only, M, and both."""

from tests.helpers import analysed
from toast_lab.conflicts.analysis import names_listing


def test_4b_names_identified_with_i_only():
    # The figure's A1, A2, X1 are our B#1, U#1, X#1 and so on: the colour says with which names M
    # will identify them.
    assert names_listing(analysed("mlp")) == (
        "def mlp(x : [B#0, X#0],\n"
        "        w1 : [X#1, U#0],\n"
        "        w2 : [U#1, W#0]) {\n"
        "  y : [B#1, U#2] = matmul(x : [B#1, X#2], w1 : [X#2, U#2])\n"
        "  z : [B#2, U#3] = max(y : [B#2, U#3], 0)\n"
        "  w : [B#3, W#1] = matmul(z : [B#3, U#4], w2 : [U#4, W#1])\n"
        "  return w\n"
        "}"
    )


def test_4b_map_has_the_ten_entries_of_the_comments():
    analysis = analysed("mlp")
    text = analysis.name_text
    edges = {
        (text[s], text[t])
        for s, t in zip(analysis.names.source, analysis.names.target, strict=True)
    }
    assert edges == {
        # B -> A1, X -> X1, T -> X1, U -> A2
        ("B#0", "B#1"),
        ("X#0", "X#2"),
        ("X#1", "X#2"),
        ("U#0", "U#2"),
        ("B#1", "B#2"),
        ("U#2", "U#3"),  # A1 -> C1, A2 -> C2
        # C1 -> E1, C2 -> V1, V -> V1, W -> E2
        ("B#2", "B#3"),
        ("U#3", "U#4"),
        ("U#1", "U#4"),
        ("W#0", "W#1"),
    }


def test_4c_identified_with_i_and_m_leaves_four_names():
    analysis = analysed("mlp")
    on_arguments = {analysis.dim_text(n) for a in range(3) for n in analysis.program.def_names(a)}
    assert on_arguments == {"B", "X", "U", "W"}
