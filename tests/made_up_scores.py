"""Made-up cells of scores, which several tests of tables and figures put into a store."""

MODEL = "smollm2-135m"


def scored(answers: dict[str, dict[str, list]], model: str = MODEL) -> dict:
    """Cells of a store of scores.

    ``answers`` are by method and then by task: the scores of its questions, or the reason why there
    are none. The dense model removes nothing, and every other method the same.
    """
    cells = {}
    for method, tasks in answers.items():
        for task, task_scores in tasks.items():
            if isinstance(task_scores, str):
                result = {"failed": task_scores}
            else:
                rows = {
                    "subtask": [task] * len(task_scores),
                    "question": list(range(len(task_scores))),
                    "score": task_scores,
                }
                result = {"rows": rows, "versions": {task: 1.0}, "answers": {task: ["x"]}}
            is_dense = method == "dense"
            result["removed_fraction"] = 0.0 if is_dense else 0.05
            result["head_ratio"] = 0.0 if is_dense else 0.2
            cell = {"inputs": {"new_tokens": 8}, "result": result, "seconds": 1.0}
            cells[model, method, task] = cell
    return cells
