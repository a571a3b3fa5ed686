"""A carrier without a network: requests go straight to the sites' handlers, in this process."""

from suture.network.node import Handler
from suture.network.settings import SiteSettings
from suture.network.wire import application_hash
from suture.network.witnesses import new_identity


class Loopback:
    def __init__(self, handlers=None, **settings):
        self.handlers, self.settings = dict(handlers or {}), settings
        self.carried = 0

    def start(self, study, base, folder):
        from suture.engine import federation

        names = federation.survey(study.public(), base, study.seed, only="").names
        peers = {}
        if study.protection.sum == "masked" and not self.handlers:
            (base / "identities").mkdir()
            peers = {name: new_identity(base / "identities" / name) for name in names}
        for name in names:
            if name not in self.handlers:
                own = next((site for site in study.sites if site.name == name), None)
                home = base / (own.home if own and own.home else f".suture/{name}")
                hidden = (
                    {"identity": str(base / "identities" / name), "peers": peers} if peers else {}
                )
                given = (
                    {"data": own.data.under(base), "region": own.region}
                    if own
                    else {"cohort": True}
                )
                settings = SiteSettings(
                    name=name,
                    hub={"address": "nowhere:1"},
                    **{
                        "charter_needed": False,
                        "exact_metrics": "scores",
                        "accepts": [study.digest],
                        "tick": 0.0,
                        **given,
                        **hidden,
                        **self.settings,
                    },
                )
                self.handlers[name] = Handler(settings, home, base=base, ledgers=folder)

    def exchange(self, requests, seconds):
        answers = {}
        for site, data in requests.items():
            self.carried += len(data)
            answers[site] = self.handlers[site].answer(data, application_hash())
        return answers

    def close(self):
        for handler in self.handlers.values():
            handler.close()
