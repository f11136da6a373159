"""The finished model as a Hugging Face folder."""

import json
import shutil
from pathlib import Path

from oarlock import models
from oarlock.models import Decoder
from oarlock.train.tasks.task import TaskData


def export_model(model: Decoder, data: TaskData, target: Path) -> None:
    """Write a model with its tokenizer and generation_config.json, published by one rename; replaces what is there.

    Args:
        model: its weights as they are now.
        data: whose tokenizer and marks of beginning and end are exported.
        target: the folder; nothing of it is touched where writing fails.

    Raises:
        OSError: the disk refuses.
    """
    building = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    try:
        models.save(model, building)
        for file in sorted(data.tokenizer_path.iterdir()):
            shutil.copy(file, building / file.name)
        special = {"bos_token_id": data.bos_id, "eos_token_id": data.eos_id}
        (building / "generation_config.json").write_text(json.dumps(special) + "\n", encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
