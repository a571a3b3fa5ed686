from suture.report.notes import gathered_notes


def test_what_many_hospitals_share_is_said_once_with_the_worst_of_them() -> None:
    many = [f"site 'h{i}': column 'bmi': {i} of 1,000 rows without a value, filled" for i in range(1, 6)]
    other = "site 'h1': column 'bmi': 4 of 1,000 rows outside the declared 10 to 60, clipped to it"
    assert gathered_notes([many[0], other, *many[1:], "a word of ours"]) == [
        "column 'bmi': 15 of 5,000 rows without a value, filled (at 5 hospitals; most at h5: 5 of 1,000)",
        other,
        "a word of ours",
    ]


def test_the_worst_is_the_largest_share_and_one_row_counts_with_rows() -> None:
    notes = [
        f"site 's{i}': column 'x': 1 of {n} row{'s' * (n > 1)} without a value" for i, n in enumerate((9, 1, 5, 7))
    ]
    assert gathered_notes(notes) == ["column 'x': 4 of 22 rows without a value (at 4 hospitals; most at s1: 1 of 1)"]


def test_few_hospitals_keep_their_own_words_and_repeats_are_said_once() -> None:
    notes = [f"site 's{i}': all training rows have the same outcome" for i in range(5)]
    assert gathered_notes([*notes, *notes]) == notes
