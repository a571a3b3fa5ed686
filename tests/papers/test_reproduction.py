"""Jobs spread over processes: all are done, each once, and an error ends the work."""

import pytest

from suture.papers.reproduction import spread


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once(workers):
    assert dict(spread(abs, [-5, 6, -7], workers)) == {0: 5, 1: 6, 2: 7}
    assert list(spread(abs, [], workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_job_is_raised(workers):
    with pytest.raises(ZeroDivisionError):
        list(spread((1).__floordiv__, [1, 0], workers))
