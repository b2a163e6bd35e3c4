"""Long: a dataset in a bucket, listed and opened by s3fs from a server that speaks S3 (moto), where both are there."""

import io

import pytest

from sidecar.collectors.datasets.collector import DatasetsCollector, DatasetsSettings
from sidecar.model import Availability

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]


@pytest.fixture
def bucket(monkeypatch):
    """(put, fsspec's options): an empty bucket `lake`."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server_of = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="lake")
    yield (
        lambda key, body: client.put_object(Bucket="lake", Key=key, Body=body),
        {"client_kwargs": {"endpoint_url": f"http://{host}:{port}"}},
    )
    client.close()
    server.stop()


def parquet(rows):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(rows))}), file, row_group_size=rows // 2)
    return file.getvalue()


def values(one, now_ms):
    return {
        (s.metric.removeprefix("spikewatch_dataset_"), *(v for _, v in s.labels)): s.value for s in one.sample(now_ms)
    }


def test_a_bucket_is_read_page_by_page_and_anew_each_time(bucket):
    put, options = bucket
    body = parquet(100)
    put("clicks/", b"")  # a folder's own marker, as consoles make them
    put("clicks/_SUCCESS", b"")
    for n in range(1100):  # more than one page of a listing
        put(f"clicks/date={n // 1050}/{n}.parquet", body)
    named = [{"name": "c", "path": "s3://lake/clicks", "options": options}]
    named.append({"name": "none", "path": "s3://elsewhere/clicks", "options": options})
    one = DatasetsCollector(DatasetsSettings.model_validate({"datasets": named, "footers": 3}))
    found = values(one, 0)
    assert found["files", "c"] == 1100
    assert found["file_size_bytes", "c", "mean"] == len(body)
    assert (found["footers", "c"], found["row_groups_per_file", "c"], found["rows_per_file", "c"]) == (3, 2, 100)
    assert (one.probe().state, one.probe().reason) == (Availability.DEGRADED, "not_found")
    put("clicks/date=9/new.parquet", body)
    assert values(one, 3_600_000)["files", "c"] == 1101, "s3fs remembers listings; ours are new"
