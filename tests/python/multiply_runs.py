"""Multiplies the one run in the database of a stopped reference server: multiply_runs.py sqlite.db COUNT"""

import sqlite3
import sys
import uuid
from datetime import datetime, timedelta

database, count = sys.argv[1], int(sys.argv[2])
connection = sqlite3.connect(database)
connection.row_factory = sqlite3.Row
run = dict(connection.execute("select * from runs").fetchone())
job = dict(connection.execute("select * from jobs where run_id = ?", (run["id"],)).fetchone())
start = datetime.fromisoformat(run["submitted_at"])


def insert(table, row):
    marks = ", ".join("?" * len(row))
    connection.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", list(row.values()))


for number in range(1, count):
    name, moment = f"fill-{number}", str(start + timedelta(milliseconds=number))
    run_id = uuid.uuid4().hex
    times = {"submitted_at": moment, "last_processed_at": moment}
    insert("runs", {**run, **times, "id": run_id, "run_name": name,
                    "run_spec": run["run_spec"].replace(run["run_name"], name)})
    insert("jobs", {**job, **times, "id": uuid.uuid4().hex, "run_id": run_id, "run_name": name,
                    "job_name": f"{name}-0-0",
                    "job_spec_data": job["job_spec_data"].replace(job["run_name"], name)})
connection.commit()
