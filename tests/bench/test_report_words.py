"""What a report says in words, and the figures that it is made from."""

from __future__ import annotations

import dataclasses

import pytest

from ladecli.bench import wording
from ladecli.bench.figures import Interval
from ladecli.bench.report import conditions, page, sweeps, tables, time_tables
from ladecli.bench.report import verdict as words
from ladecli.bench.report.document import document
from ladecli.bench.report.doubts import doubts
from ladecli.bench.report.summary import Summary, summarise
from ladecli.bench.result import Failure, Result, Skipped

from . import makers, report_results


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"), (0.0, "0"), (float("nan"), "-"), (1.2345, "1.23"), (0.000123, "0.000123"),
        (99.96, "100.0"), (123.4, "123"), (98765.0, "98,765"), (-2.5, "-2.50"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_powers(value: float | None, said: str) -> None:
    assert wording.decimal(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "0.50 s"), (45.2, "45 s"), (61, "1 min"), (3540, "59 min"), (3900, "1 h 5 min")],
)
def test_durations(seconds: float, said: str) -> None:
    assert wording.duration(seconds) == said


def test_names_are_one_line_without_controls() -> None:
    assert wording.clean("a\nb\x1b[31m\u202ec\ud800\ufffe") == "a b[31mc\ufffd\ufffd"


def with_speedup(found: Interval | None, over_hf: Interval | None = None) -> Summary:
    """A summary whose hero has these speed-ups."""
    made = summarise(makers.result({"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8}))
    assert made.hero is not None
    hero = dataclasses.replace(made.hero, speedup=found)
    return dataclasses.replace(made, hero=hero, over_hf=over_hf)


FASTER, SLOWER = Interval(1.52, 1.47, 1.58), Interval(0.8, 0.77, 0.83)
EVEN = Interval(1.01, 0.98, 1.04)
ON = "on these 9 prompts"


@pytest.mark.parametrize(
    ("found", "over_hf", "said"),
    [
        (
            FASTER, Interval(1.9, 1.8, 2.0),
            f"Lookahead makes 1.52× (1.47 to 1.58) the tokens per second of plain decoding {ON} and"
            " 1.90× (1.80 to 2.00) those of transformers' generate.",
        ),
        (
            FASTER, None,
            f"Lookahead makes 1.52× (1.47 to 1.58) the tokens per second of plain decoding {ON}.",
        ),
        (
            FASTER, EVEN,
            f"Lookahead makes 1.52× (1.47 to 1.58) the tokens per second of plain decoding {ON} and"
            " 1.01× (0.98 to 1.04) those of transformers' generate, which is no clear difference.",
        ),
        (
            SLOWER, None,
            "Lookahead is slower than plain decoding: it makes 0.80× (0.77 to 0.83) the tokens per"
            f" second of plain decoding {ON}.",
        ),
        (
            EVEN, FASTER,
            f"There is no clear difference in speed between lookahead and plain decoding {ON}:"
            " 1.01×, with 95 % confidence 0.98 to 1.04; it makes 1.52× (1.47 to 1.58) the tokens"
            " per second of transformers' generate.",
        ),
    ],
)  # fmt: skip
def test_the_verdict_is_honest(found: Interval, over_hf: Interval | None, said: str) -> None:
    assert words.verdict(with_speedup(found, over_hf))[0] == said


def test_without_an_interval_there_are_rates_alone() -> None:
    said = words.verdict(summarise(makers.result(rows=1, repeats=1)))[0]
    assert said.startswith("Lookahead makes ")
    assert said.endswith("per step on this prompt.")
    assert "×" not in said


def test_the_best_of_many_settings_is_said_to_be_that() -> None:
    said = words.verdict(summarise(report_results.grid({"W": ("3", "5", "10"), "N": ("3", "5")})))
    assert said[0].startswith("Lookahead W=10 N=")
    assert said[1].startswith("It is the fastest of 6 settings; the best of many looks a little")


def test_the_verdict_of_contexts_names_both_ends() -> None:
    said = words.verdict(summarise(report_results.contexts()))[1]
    assert " at 1024 tokens of context, and " in said
    assert said.endswith(" at 16384.")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "All 54 answers are equal to those of plain decoding, token for token."),
        (
            2,
            "Answers differ from those of plain decoding: 2 of 27 of lookahead; lade verify tells"
            " where, and whether arithmetic explains it.",
        ),
    ],
)
def test_equality(count: int, said: str) -> None:
    assert words.equality_sentence(summarise(report_results.differing(count))) == said


def test_nothing_is_said_of_equality_where_nothing_was_compared() -> None:
    assert words.equality_sentence(summarise(report_results.bare())) is None


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"interrupted": True}, "Interrupted: 189 runs; the figures are of those."),
        ({"overhead": 0.03}, "Measuring itself took 3.0 % of the time."),
        ({"rows": 1}, "1 prompt says nothing of others: a speed-up and its interval take 3."),
        ({"rows": 2}, "2 prompts say nothing of others: a speed-up and its interval take 3."),
        ({"repeats": 1}, "Each prompt was measured once: the noise of this machine is unknown."),
    ],
)  # fmt: skip
def test_doubts(changes: dict[str, object], doubt: str) -> None:
    assert doubt in doubts(summarise(makers.result(**changes)))


def test_a_conversation_that_ended_early_is_no_row_left_out() -> None:
    cut = Skipped("row-1", "turn 2: the prompt has 2,100 tokens")
    gone = (Skipped("long", "the prompt has 3,000 tokens"), Skipped("longer", "4,000"))
    one = "1 conversation ended before the last turn; see below."
    two = "2 rows of the prompts left out; see below."
    for skipped, said in (((cut,), [one]), (gone, [two]), ((*gone, cut), [two, one])):
        found = doubts(summarise(makers.result(skipped=skipped)))
        assert [each for each in found if each.endswith("see below.")] == said


def test_failures_are_told_for_what_they_cost() -> None:
    assert doubts(summarise(report_results.failed())) == [
        "Without any answer: lookahead W=9; the reasons are below.",
        "Where the time of paper goes is not known; the reason is below.",
        "Lookahead failed on 2 prompts; the reasons are below.",
        "Not all answered the same prompts: lookahead 7 of 9.  Speed-ups are over those that both"
        " answered, all else over those that each did.",
    ]


def test_failures_of_transformers_keep_its_name() -> None:
    made = makers.result(
        {"autoregressive": 1.0, "hf": 0.8}, failures=(Failure("hf", "row-1", "out of memory"),)
    )
    said = "transformers' generate failed on 1 prompt; the reasons are below."
    assert said in doubts(summarise(made))


def test_without_runs_there_is_nothing_to_doubt() -> None:
    assert doubts(summarise(report_results.without_runs())) == []


def test_columns_are_explained_once() -> None:
    made = summarise(makers.result())
    assert not any(table.footnotes for table in tables.by_category(made))
    bare = tables.overall(summarise(report_results.bare())).footnotes
    assert not any("no speed-up" in each for each in bare)


@pytest.mark.parametrize(
    ("sampling", "told"),
    [({}, False), ({"repetition_penalty": 1.3}, False), ({"temperature": 0.8, "seed": 1}, True)],
)
@pytest.mark.parametrize("foreign", ["hf", "hf-prompt-lookup"])
def test_other_random_numbers_are_told_where_tokens_are_drawn(
    sampling: dict[str, float], told: bool, foreign: str
) -> None:
    made = makers.result(
        {"autoregressive": 1.0, foreign: 0.8},
        conditions=report_results.conditions(sampling=sampling),
    )
    said = "transformers draws other random numbers: its answers were not compared."
    assert (said in doubts(summarise(made))) is told


def test_the_faster_generate_of_transformers_is_what_counts() -> None:
    speeds = {"autoregressive": 1.0, "lookahead": 1.5, "hf": 0.8}
    for compiled, named, faster in ((1.2, "compiled ", 1.25), (0.5, "", 1.87)):
        made = summarise(makers.result({**speeds, "hf-compiled": compiled}, noise=0.0))
        assert made.over_hf is not None
        assert made.over_hf.value == pytest.approx(faster, abs=0.01)
        assert f" those of transformers' {named}generate." in words.verdict(made)[0]
        assert page.tiles(made)[1][1] == f"over transformers' {named}generate"
    made = summarise(
        makers.result({"hf": 0.8, "lookahead": 1.5, "hf-compiled": 1.0}, reference="hf")
    )
    assert made.hf == "hf-compiled"
    assert made.over_hf is not None


def test_compiling_is_told_and_what_it_leaves_in_memory() -> None:
    speeds = {"autoregressive": 1.0, "hf-compiled": 1.2}
    made = summarise(makers.result(speeds, compile_seconds=95.0))
    *_, facts, _settings = conditions.tables(made)
    assert dict(facts.rows)["compiling"] == "2 min for transformers' steps, in no figure"
    said = (
        "What transformers compiled, and its static cache, stay in memory all the time: they are"
        " part of everybody's peak."
    )
    assert said in doubts(made)
    without = summarise(makers.result())
    assert said not in doubts(without)
    assert "compiling" not in dict(next(conditions.tables(without)).rows)


def test_what_captured_steps_leave_in_memory_is_told_where_transformers_is_measured() -> None:
    said = (
        "Our own steps are captured once and stay in memory, and so does our cache: they are part"
        " of the peak of transformers, too."
    )
    speeds = {"autoregressive": 1.0, "hf": 0.8}
    for captured in (True, False):
        made = makers.result(speeds)
        model = dataclasses.replace(made.model, captured=captured)
        made = dataclasses.replace(made, model=model)
        assert (said in doubts(summarise(made))) is captured
    alone = makers.result({"autoregressive": 1.0})
    model = dataclasses.replace(alone.model, captured=True)
    alone = dataclasses.replace(alone, model=model)
    assert said not in doubts(summarise(alone))


def test_texts_that_the_model_was_not_made_for_are_told_everywhere() -> None:
    made = summarise(report_results.contexts(made_for=4100))
    assert words.verdict(made)[1].endswith(" at 16384, beyond what the model was made for.")
    assert doubts(made)[-1] == (
        "Texts of 4096 and 16384 tokens and their answers are longer than the 4,100 tokens that the"
        " model was made for: its text means nothing there, and speed-ups and tokens per step hold"
        " for no real text."
    )
    facts = dict(row for row in next(conditions.tables(made)).rows)
    assert facts["model"].endswith(", 32,768 tokens of context, made for 4,100")
    whole = summarise(report_results.contexts())
    assert "made for" not in " ".join(doubts(whole))
    assert dict(next(conditions.tables(whole)).rows)["model"].endswith("32,768 tokens of context")


def test_lengths_with_too_few_texts_are_named() -> None:
    made = summarise(report_results.contexts(rows=8))
    assert doubts(made)[0] == ("Too few texts of 16384 tokens: a speed-up and its interval take 3.")
    assert " on these 8 texts" in words.verdict(made)[0]
    speeds = next(tables.categories(made))
    assert speeds.rows[0][3] == "-"
    assert speeds.notes[-1] == (
        "- no speed-up: that takes 3 texts which both answered in more than one step"
    )


def test_a_text_is_read_once_for_all() -> None:
    def said(made: Result) -> str:
        return tables.overall(summarise(made)).footnotes[0]

    assert "first ms: reading the text, which is measured once" in said(report_results.contexts())
    assert "first ms: time to the first token, the median" in said(makers.result())


def test_what_favours_transformers_is_told_beside_it() -> None:
    def said(made: Result) -> bool:
        return any("favours" in each for each in tables.overall(summarise(made)).footnotes)

    assert said(makers.result())
    assert not said(makers.result({"autoregressive": 1.0, "lookahead": 1.4}))


def test_without_steps_there_is_no_share_of_their_time() -> None:
    made = makers.result()
    spent = tuple(dataclasses.replace(each, steps=0, seconds={}) for each in made.time_spent)
    summary = summarise(dataclasses.replace(made, time_spent=spent))
    assert not list(time_tables.tables(summary))
    assert "time" not in [section.key for section in document(summary).sections]


def test_of_many_contenders_the_reference_the_best_and_the_fastest_are_drawn() -> None:
    made = summarise(report_results.grid({"W": tuple(str(n) for n in range(3, 16))}))
    drawn = [each.contender for each in made.fastest(3)]
    assert made.hero is not None
    assert drawn[0] == "autoregressive"
    assert made.hero.contender in drawn
    assert len(drawn) == 3
    assert made.fastest(99) == made.overall


def test_an_interrupted_result_says_how_much_is_missing() -> None:
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.5}, interrupted=True)
    made = dataclasses.replace(made, runs=made.runs[:20])
    said = doubts(summarise(made))[0]
    assert said == "Interrupted: 20 of 54 runs; the figures are of those."


@pytest.mark.parametrize("names", [("autoregressive",), ("autoregressive", "lookahead")])
def test_a_machine_that_slows_down_is_not_called_steady(names: tuple[str, ...]) -> None:
    made = makers.result(dict.fromkeys(names, 1.0))
    runs = tuple(
        dataclasses.replace(
            run,
            first_seconds=run.first_seconds * run.repeat,
            step_seconds=tuple(s * run.repeat for s in run.step_seconds),
        )
        for run in made.runs
    )
    found = doubts(summarise(dataclasses.replace(made, runs=runs)))
    (said,) = (each for each in found if "the last repeat took 20" in each)
    assert "more time" in said
    assert ("took turns" in said) == (len(names) > 1)
    assert not any("steady" in each for each in doubts(summarise(made)))


def test_columns_without_figures_are_left_out() -> None:
    titles = [column.title for column in tables.overall(summarise(report_results.bare())).columns]
    assert "memory" not in titles
    assert "width" not in titles
    assert "speed-up" not in titles or "95 %" not in titles


def test_answers_of_one_step_have_no_width_and_no_rate() -> None:
    found = tables.overall(summarise(report_results.one_step_answers()))
    titles = [column.title for column in found.columns]
    assert titles == ["", "speed-up", "equal", "tok/step", "first ms", "memory"]
    assert found.notes[0].startswith("- no speed-up: that takes 3 prompts which both answered in")


def test_what_includes_one_is_marked() -> None:
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.0}, noise=0.2)
    found = next(tables.categories(summarise(made)))
    assert all(cell.startswith("~") for cell in found.rows[0][1:])


def test_rates_are_shares_of_the_machines_own() -> None:
    made = makers.result({"autoregressive": 1.0, "lookahead": 1.5})
    shares, rates = time_tables.tables(summarise(made))
    assert shares.rows[0][:4] == ("plain decoding", "2.90", "6.2 %", "86 %")
    assert rates.rows[0][2:4] == ("5.20 GB/s (43 %)", "2.52 GFLOP/s (4.2 %)")
    without = time_tables.tables(summarise(dataclasses.replace(made, ceiling=None)))
    assert list(without)[1].rows[0][2] == "5.20 GB/s"


def test_a_grid_has_holes_where_nothing_was_measured() -> None:
    made = report_results.grid({"N": ("3", "5"), "W": ("3", "5", "10")}, missing=(1,))
    first, second = sweeps.grids(summarise(made))
    assert (first.title, first.across, first.columns) == ("Speed-up", "W", ("3", "5", "10"))
    assert (second.title, second.down, second.rows) == ("Tokens per step", "N", ("3", "5"))
    assert [[cell is None for cell in row] for row in first.cells] == [
        [False, True, False],
        [False, False, False],
    ]


def test_a_third_axis_makes_several_grids() -> None:
    made = report_results.grid({"W": ("3", "5"), "N": ("3", "5"), "G": ("3", "5")})
    assert [grid.title for grid in sweeps.grids(summarise(made))] == [
        "Speed-up, G=3", "Speed-up, G=5", "Tokens per step, G=3", "Tokens per step, G=5",
    ]  # fmt: skip


def test_one_axis_makes_lines_and_names_make_none() -> None:
    found = sweeps.lines(summarise(report_results.grid({"W": ("3", "5", "10")})))
    assert list(found) == ["Speed-up", "Tokens per step"]
    assert [x for x, _ in found["Speed-up"][0].points] == [3, 5, 10]
    assert not sweeps.lines(summarise(report_results.grid({"dtype": ("float32", "bfloat16")})))


def test_the_law_is_found_where_it_holds() -> None:
    made = report_results.grid({"W": ("3", "5", "10"), "N": ("3",)})
    octaves = {"lookahead W=3 N=3": 1, "lookahead W=5 N=3": 2, "lookahead W=10 N=3": 3}
    runs = tuple(
        dataclasses.replace(
            run, steps=21, step_seconds=(0.001,) * 20, tokens=21 + 21 * at, fed=20 * 2**at
        )
        if (at := octaves.get(run.contender))
        else run
        for run in made.runs
    )
    found = sweeps.law(summarise(dataclasses.replace(made, runs=runs)))
    assert found is not None
    assert found.fits[0].slope == pytest.approx(1.0)
    assert found.fits[0].intercept == pytest.approx(1.0)
    assert found.fits[0].explained == pytest.approx(1.0)
    assert sweeps.law_sentences(found) == [
        "the settings: +1.00 tokens per step for every doubling of the work; a straight line"
        " explains 100 % of the variance (R² = 1.00)"
    ]


def test_two_cells_are_no_law() -> None:
    assert sweeps.law(summarise(report_results.grid({"W": ("3", "5"), "N": ("3",)}))) is None


def test_the_paper_says_nothing_of_budgets_and_sources() -> None:
    made = report_results.grid({"budget": ("8", "16", "32"), "sources": ("context", "all")})
    assert sweeps.law(summarise(made)) is None
