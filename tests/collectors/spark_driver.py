"""A real Spark application for the tests, run by an interpreter that has pyspark: `spark_driver.py FOLDER`.

It does what its standard input says, one word a line, and answers each with a line of JSON.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

MIB = 1 << 20


def main(folder):
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
    }
    # an executor of its own: with local[2] running tasks never tell what they have done
    builder = SparkSession.builder.master("local-cluster[1,2,512]").appName("etl")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    answer(url=context.uiWebUrl, version=spark.version)
    for line in sys.stdin:
        what = line.strip()
        if what == "shuffle":  # four tasks of a mebibyte each, which one task gets
            noise = context.parallelize(range(4), 4).map(lambda n: (0, os.urandom(MIB)))
            answer(length=noise.groupByKey(1).mapValues(lambda v: sum(map(len, v))).collect()[0][1])
        elif what == "result":  # two mebibytes to the driver, of each of two tasks
            found = context.parallelize(range(2), 2).map(lambda n: os.urandom(2 * MIB)).collect()
            answer(length=sum(map(len, found)))
        elif what == "read":
            answer(lines=context.textFile(str(folder / "text"), 2).count())
        elif what == "hold":
            thread = threading.Thread(target=hold, args=(context, folder))
            thread.start()
            answer(started=True)
        elif what == "stop":
            (folder / "stop").touch()
            thread.join()
            spark.stop()
            answer(stopped=True)


def hold(context, folder):
    """One task, which has read the text and does not end."""
    stop = str(folder / "stop")
    context.textFile(str(folder / "text"), 1).coalesce(1).foreachPartition(lambda lines: wait(lines, stop))


def wait(lines, stop):
    for _ in lines:
        pass
    while not os.path.exists(stop):
        time.sleep(0.05)


def answer(**found):
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
