"""A study on the embedded engine and as a real federation on this machine: total time, overhead a
round, bytes on the wire.

    python benchmarks/federation.py            # FedCVR's five hospitals, 20 rounds
    python benchmarks/federation.py --small    # a look

The overhead of a round is what the federation takes longer for it than one process does, metrics
included: two exchanges with every site (the step, and the scores of its generated test patients).
Bytes are HTTP bodies and headers at the coordinator's connections, without TLS records (about 22
bytes each) and TCP/IP; the payload is the sealed envelopes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from suture.engine import conduct
from suture.network.coordinator import Remote
from suture.network.local import LocalFlower
from suture.study import Study


def study(rounds: int, patients: int) -> Study:
    """FedCVR's network and hospitals, one local epoch, epsilon 8."""
    return Study(
        name="federation",
        outcome="high_risk",
        cohort={"name": "cardio", "patients": patients},
        method={"name": "fedadam", "rounds": rounds, "local_epochs": 5},
        privacy={"unit": "patient", "epsilon": 8.0},
    )


class Counted(LocalFlower):
    """Counts what goes over the coordinator's connections to the hub."""

    sent = received = calls = 0

    def _start(self, *args: Any) -> None:
        super()._start(*args)
        hub = self._carrier.hub  # type: ignore[union-attr]
        plain = hub._runtime

        def runtime(token: str | None = None) -> Any:
            client = plain(token)
            hooks = client._client.event_hooks
            hooks["request"] = [*hooks.get("request", []), self._request]
            hooks["response"] = [*hooks.get("response", []), self._response]
            client._client.event_hooks = hooks
            return client

        hub._runtime = runtime  # type: ignore[method-assign]

    def _request(self, request: Any) -> None:
        self.calls += 1
        self.sent += (
            sum(len(k) + len(v) + 4 for k, v in request.headers.raw)
            + len(request.url.raw_path)
            + 20
        )
        self.sent += int(request.headers.get("content-length", 0))

    def _response(self, response: Any) -> None:
        self.received += sum(len(k) + len(v) + 4 for k, v in response.headers.raw) + 19
        self.received += int(response.headers.get("content-length", 0))


def timed(asked: Study, engine: Any, folder: Path) -> dict[str, Any]:
    """Total seconds, seconds until the first round is done, and seconds of a later round."""
    marks: list[float] = []
    begun = time.perf_counter()
    result = conduct.run(
        asked,
        base=folder,
        out=folder / "run",
        engine=engine,
        progress=lambda _: marks.append(time.perf_counter()),
    )
    total = time.perf_counter() - begun
    later = sorted(b - a for a, b in itertools.pairwise(marks))
    return {
        "total": total,
        "first": marks[0] - begun,
        "round": later[len(later) // 2],
        "auc": result.data["metrics"]["global"]["auc"],
        "payload": result.data["communication"],
    }


def main() -> None:
    """Both engines, and the difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    asked = study(8 if small else 20, 1500 if small else 30_000)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        here = timed(asked, None, Path(one))
        carrier = Counted()
        there = timed(asked, Remote(carrier), Path(two))
    payload = there["payload"]["bytes_up"] + there["payload"]["bytes_down"]
    rounds = asked.method.rounds
    found = {
        "rounds": rounds,
        "embedded": {key: round(here[key], 3) for key in ("total", "first", "round")},
        "flower": {key: round(there[key], 3) for key in ("total", "first", "round")},
        "overhead_a_round": round(there["round"] - here["round"], 3),
        "same_auc": here["auc"] == there["auc"],
        "payload_bytes_a_round": round(payload / rounds),
        "wire_bytes_a_round": round((carrier.sent + carrier.received) / rounds),
        "calls_a_round": round(carrier.calls / rounds, 1),
        "wire_over_payload": round((carrier.sent + carrier.received) / payload, 2),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
