"""The run folder: study, checkpoints, result. Every file is replaced whole, so a kill leaves the
old or the new one.

```
RUN/study.toml        the study as it ran             RUN/result.json   everything measured, and the privacy statement
RUN/run.json          where the study's files are     RUN/report.html   the page for people
RUN/checkpoints/      one file a method and seed      RUN/model.npz     the primary method's model
                      (and those before a site's first round, where that is not the first)
RUN/ledgers/          only for generated patients; real sites keep theirs at home
```
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suture.engine.round import Training
from suture.errors import RunError
from suture.privacy.files import write_whole
from suture.study import Study

State = dict[str, NDArray[Any]]


def before_key(key: str, round_: int) -> str:
    """The name of a checkpoint that is kept for good.

    >>> before_key("fedadam-42", 3)
    'fedadam-42-round-3'
    """
    return f"{key}-round-{round_}"


class RunFolder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        study: Study,
        base: Path,
        file: Path | None = None,
        engine: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """A new run; refuses a folder that already holds one. Passwords are left in the study's own
        ``file``."""
        if (path / "run.json").exists():
            finished = (path / "result.json").exists()
            hint = "choose another --out" if finished else f"go on with: suture run --resume {path}"
            raise RunError(
                f"{path} already holds a{' finished' if finished else 'n unfinished'} run; {hint}"
            )
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; --out needs a folder")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "ledgers").mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error}") from None
        folder = cls(path)
        write_whole(path / "study.toml", study.without_passwords().to_toml().encode())
        places = {
            "base": os.path.relpath(base, path),
            "study": file and os.path.relpath(file, path),
        }
        write_whole(path / "run.json", json.dumps({**places, **(engine or {})}).encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> tuple[RunFolder, Study, Path]:
        """An existing run: its folder, its study, and the folder the study's paths are relative
        to."""
        try:
            places = json.loads((path / "run.json").read_text())
            study = Study.from_toml(path / "study.toml")
            if places.get("study") and any(site.data and site.data.url for site in study.sites):
                study = study.with_passwords_of(Study.from_toml(path / places["study"]))
            return cls(path), study, (path / places["base"]).resolve()
        except FileNotFoundError:
            raise RunError(
                f"{path} is not a run folder (no run.json in it); suture run prints where runs are"
            ) from None
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path}/run.json cannot be read: {error}") from None

    def remove_if_unused(self) -> None:
        """Take away a folder in which nothing was trained: a mistake in the study or in a table
        leaves nothing behind."""
        if any((self.path / "checkpoints").iterdir()) or (self.path / "result.json").exists():
            return
        if any((self.path / "ledgers").iterdir()):
            shutil.rmtree(
                self.path / "ledgers"
            )  # of generated patients, and without a charge worth keeping
        for name in ("study.toml", "run.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("checkpoints", "ledgers", "."):
            with contextlib.suppress(OSError):  # a folder that holds something of the user's stays
                (self.path / name).rmdir()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One process a folder; the lock goes when the process does, whatever ended it."""
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"{self.path} is in use by another suture process; wait for it or stop it"
                ) from None
            yield

    def _checkpoint(self, key: str) -> Path:
        return self.path / "checkpoints" / f"{key}.npz"

    def save(
        self, key: str, training: Training, own: dict[str, State], outcome: dict[str, Any] | None
    ) -> None:
        """Everything needed to go on after ``training.round``, or to skip a finished training."""
        meta = {
            "round": training.round,
            "history": training.history,
            "bytes_up": training.bytes_up,
            "bytes_down": training.bytes_down,
            "stopped": training.stopped,
            "absent": training.absent,
            "protection": training.protection,
            "outcome": outcome,
        }
        arrays: dict[str, Any] = {f"state/{name}": array for name, array in training.state.items()}
        for site, state in own.items():
            arrays.update({f"own/{site}/{name}": array for name, array in state.items()})
        buffer = io.BytesIO()
        np.savez(buffer, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays)
        write_whole(self._checkpoint(key), buffer.getvalue())

    def load(self, key: str) -> tuple[Training, dict[str, State], dict[str, Any] | None] | None:
        """The last checkpoint of a training, or None."""
        path = self._checkpoint(key)
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        except (OSError, ValueError) as error:
            raise RunError(
                f"{path} cannot be read: {error}; delete it to train this part again"
            ) from None
        meta = json.loads(arrays.pop("meta").tobytes())
        outcome = meta.pop("outcome")
        state: State = {}
        own: dict[str, State] = {}
        for name, array in arrays.items():
            kind, rest = name.split("/", 1)
            if kind == "state":
                state[rest] = array
            else:
                site, entry = rest.rsplit("/", 1)
                own.setdefault(site, {})[entry] = array
        return Training(state, **meta), own, outcome
