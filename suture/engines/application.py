"""The Flower app that a run names: three small files in an archive that is the same byte for byte everywhere.

Flower ties a run to an app (a FAB) by its hash, and its stock SuperNode would install and run that app. A Suture site
never does: the hash only says which version of Suture the coordinator runs, and the site answers with its own installed
code. The app is here because Flower needs one, and its code, if anybody ran it, would refuse.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache

from suture import __version__

_PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "suture"
version = "{__version__}"
description = "Names the version of Suture that a coordinator runs; sites run their own installed code."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "suture"

[tool.flwr.app.components]
serverapp = "suture_app:server"
clientapp = "suture_app:client"

[tool.flwr.app.config]
"""
_CODE = '''"""Not to be run: sites answer with their own installed Suture."""

raise RuntimeError("this app is a name, not code; start the site with: suture site start")
'''


@cache
def application() -> bytes:
    """The archive.

    >>> len(application()) > 500, application() is application()
    (True, True)
    """
    files = {"pyproject.toml": _PROJECT.encode(), "suture_app.py": _CODE.encode()}
    listing = "".join(
        f"{name},{hashlib.sha256(content).hexdigest()},{len(content) * 8}\n" for name, content in sorted(files.items())
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted({**files, ".info/CONTENT": listing.encode()}.items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


@cache
def application_hash() -> str:
    """As Flower writes it: the archive's SHA-256.

    >>> len(application_hash())
    64
    """
    return hashlib.sha256(application()).hexdigest()
