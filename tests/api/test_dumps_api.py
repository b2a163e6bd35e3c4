"""Flight-recorder dumps over HTTP: who may ask, what is listed, what is handed out."""

import asyncio

import httpx
import pytest

from sidecar.api import routes
from sidecar.api.services import Services
from sidecar.trainer.dumps import Dump

PATH = "/api/v1/trainer/dumps"


class Channel:
    """What the trainer channel keeps, by hand."""

    def __init__(self):
        self.asked = []
        self.kept = {1: (Dump(1, "flight_recorder", 1234, 15, ""), b'{"entries": []}')}
        self.kept[2] = (Dump(2, "flight_recorder", 1235, 0, "torch.distributed is not initialised"), b"")

    def ask_for_dumps(self, dump_id):
        self.asked.append(dump_id)
        return (1, 2)

    def dumps(self):
        return {rank: dump for rank, (dump, _) in self.kept.items()}

    def dump(self, rank):
        return self.kept[rank][1] if rank in self.kept else b""


async def no_reload():
    return ()


@pytest.fixture
def ask():
    def make(method, path, dumps, client=("127.0.0.1", 5), **more):
        services = Services(lambda accept: (b"", "text/plain"), lambda: "", no_reload, lambda: (), dumps=dumps, **more)

        async def go():
            transport = httpx.ASGITransport(routes.full(services), client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                return await http.request(method, path)

        return asyncio.run(go())

    return make


def test_every_ranks_newest_answer_is_listed_and_its_content_handed_out_as_it_came(ask):
    channel = Channel()
    listed = ask("GET", PATH, channel).json()["data"]["dumps"]
    assert [(d["rank"], d["size"], d["detail"]) for d in listed] == [
        (1, 15, ""),
        (2, 0, "torch.distributed is not initialised"),
    ]
    answer = ask("GET", PATH + "/1", channel)
    assert (answer.status_code, answer.json()) == (200, {"entries": []})
    for rank in ("2", "7"):
        assert ask("GET", f"{PATH}/{rank}", channel).status_code == 404
    assert ask("GET", PATH + "/one", channel).status_code == 404


def test_asking_tells_which_ranks_were_asked(ask):
    channel = Channel()
    answer = ask("POST", PATH, channel).json()["data"]
    assert answer["asked"] == [1, 2]
    assert channel.asked == [answer["id"]]


def test_who_may_not_change_anything_may_not_ask(ask, tmp_path):
    channel, token = Channel(), tmp_path / "token"
    token.write_text("secret")
    assert ask("POST", PATH, channel, token_file=token).status_code in (401, 403)
    assert channel.asked == []


def test_a_sidecar_without_a_trainer_channel_has_none(ask):
    assert ask("GET", PATH, None).json()["data"]["dumps"] == []
    assert ask("POST", PATH, None).status_code == 404
