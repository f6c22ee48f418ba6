"""What every error looks like."""

from tests.wire import Answer


def is_problem(answer: Answer, status: int, field: str | None = None, index: int | None = None) -> bool:
    """Fails with the answer at hand, so that a test can simply assert it."""
    assert answer.status == status, answer
    assert answer.kind == "application/problem+json", answer
    problem = answer.json
    assert problem["status"] == status, problem
    assert problem["title"], problem
    assert problem["detail"], problem
    if field is not None:
        assert problem["field"] == field, problem
        assert field in problem["detail"], problem
    if index is not None:
        assert problem["index"] == index, problem
    return True
