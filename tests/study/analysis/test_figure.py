"""Figures as plain data: refused where they do not fit together, and written for other programs."""

from __future__ import annotations

import io

import numpy as np
import pytest

from fedpfl.study.analysis.figure import Bars, Heatmap, Images, Lines, Points, file_name, write_data


def test_numbers_become_csv():
    assert Lines("t", "x", "y", {"a": ([1, 2], [3, 4.5])}).file() == ("csv", b"series,x,y\na,1,3\na,2,4.5\n")
    bubbles = Points("t", "x", "y", {"a": ([1], [2]), "b": ([3], [4])}, {"a": [9]}, "size")
    assert bubbles.file() == ("csv", b"series,x,y,size\na,1,2,9\nb,3,4,\n")
    assert Bars("t", "y", ["g"], {"a": [1.0], "b": [None]}).file() == ("csv", b"group,a,b\ng,1.0,\n")
    matrix = Heatmap("t", "x", "y", np.array([[1.0, 2.0]]), ["r"], ["c", "d"])
    assert matrix.file() == ("csv", b"y,c,d\nr,1.0,2.0\n")


def test_figures_whose_titles_have_one_file_name_each_get_a_file(tmp_path):
    write_data([Lines(title, "x", "y", {title: ([1], [2])}) for title in ("drift α", "drift β", "drift")], tmp_path)
    written = {path.name: path.read_text().splitlines()[1] for path in tmp_path.iterdir()}
    assert written == {"drift.csv": "drift α,1,2", "drift--2.csv": "drift β,1,2", "drift--3.csv": "drift,1,2"}


def test_images_become_npz():
    ending, content = Images("t", {"a": [np.zeros((2, 2)), np.ones((2, 2, 3))]}).file()
    stored = np.load(io.BytesIO(content))
    assert ending == "npz"
    assert sorted(stored) == ["a/000", "a/001"]
    assert stored["a/001"].shape == (2, 2, 3)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(ValueError, match="2 x for 1 y"):
        Lines("t", "x", "y", {"a": ([1, 2], [1])})
    with pytest.raises(ValueError, match="1 sizes"):
        Points("t", "x", "y", {"a": ([1, 2], [1, 2])}, {"a": [1]})
    with pytest.raises(ValueError, match="2 bars for 1 groups"):
        Bars("t", "y", ["g"], {"a": [1, 2]})
    with pytest.raises(ValueError, match="1 rows and 2 columns"):
        Heatmap("t", "x", "y", np.zeros((2, 2)), ["r"], ["c", "d"])
    with pytest.raises(ValueError, match="1 captions"):
        Images("t", {"a": [np.zeros((2, 2))] * 2}, {"a": ["one"]})


def test_titles_become_names_of_files():
    assert file_name("Best accuracy, by α = 0.1") == "best-accuracy-by-0-1"
