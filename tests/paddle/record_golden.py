"""Record what real Paddle answers to the calls of `calls/*.txt`, into `golden/*.json`. The tests need no Paddle.

    python -m venv /tmp/venv && /tmp/venv/bin/pip install paddlepaddle==3.3.1
    /tmp/venv/bin/python tests/paddle/record_golden.py [--all] [TOPIC ...]

Only calls without a recorded answer are run, unless `--all`. Every call runs in a forked child: some kernels kill it.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import paddle_cases as cases


def answer(expression: str, paddle: Any) -> Any:
    """The plain result of a call in a forked child, or {"error": what happened}."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(20)
        try:
            result = cases.evaluate(expression, paddle)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        with os.fdopen(write, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"died with status {status}"}


def main() -> None:
    """Record, and print the calls that failed."""
    warnings.simplefilter("ignore")
    import paddle

    chosen = [word for word in sys.argv[1:] if not word.startswith("-")] or cases.topics()
    for topic in chosen:
        path = cases.GOLDEN / f"{topic}.json"
        known = json.loads(path.read_text()) if path.exists() and "--all" not in sys.argv else {}
        answers = {}
        for expression in cases.calls(topic):
            answers[expression] = known.get(expression) or answer(expression, paddle)
            if isinstance(answers[expression], dict) and "error" in answers[expression]:
                print(expression, "->", answers[expression]["error"].splitlines()[0])
                answers.pop(expression)
        lines = ",\n".join(f"{json.dumps(e)}: {json.dumps(a, separators=(',', ':'))}" for e, a in answers.items())
        path.write_text("{\n" + lines + "\n}\n")
        print(f"{len(answers)} answers in {path}")


if __name__ == "__main__":
    main()
