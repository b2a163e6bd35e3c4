"""`spikewatch run --config CONFIG` in an AWS account that moto plays, in which money is wasted.

A volume has 10 000 provisioned IOPS and used 20 in its week; a machine used 1 % of its CPU and hardly sent a byte.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import moto

REGION = "us-east-1"
STEP_S = 300  # of CloudWatch's points for volumes


def put(watch: Any, namespace: str, metric: str, dimension: str, resource: str, step_s: int, value: float) -> None:
    """A week of equal points up to midnight, a thousand at once."""
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    own = {"MetricName": metric, "Dimensions": [{"Name": dimension, "Value": resource}], "Value": value}
    data = [own | {"Timestamp": end - timedelta(seconds=n * step_s)} for n in range(1, 7 * 86_400 // step_s + 1)]
    for first in range(0, len(data), 1000):
        watch.put_metric_data(Namespace=namespace, MetricData=data[first : first + 1000])


def fill() -> None:
    """The account as it was all week."""
    ec2, watch = boto3.client("ec2", region_name=REGION), boto3.client("cloudwatch", region_name=REGION)
    image = ec2.register_image(Name="any")["ImageId"]
    (machine,) = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="m5.large")["Instances"]
    made = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=500, VolumeType="io2", Iops=10_000)["VolumeId"]
    ec2.attach_volume(VolumeId=made, InstanceId=machine["InstanceId"], Device="/dev/sdf")
    for metric in ("VolumeReadOps", "VolumeWriteOps"):
        put(watch, "AWS/EBS", metric, "VolumeId", made, STEP_S, 10.0 * STEP_S)
    put(watch, "AWS/EC2", "CPUUtilization", "InstanceId", machine["InstanceId"], 3_600, 1.0)
    for metric in ("NetworkIn", "NetworkOut"):
        put(watch, "AWS/EC2", metric, "InstanceId", machine["InstanceId"], 3_600, 1_000.0)


def main() -> None:
    """Serves until it is killed."""
    from sidecar.cli import main as spikewatch

    with moto.mock_aws():
        fill()
        spikewatch(["run", "--config", sys.argv[1]])


if __name__ == "__main__":
    main()
