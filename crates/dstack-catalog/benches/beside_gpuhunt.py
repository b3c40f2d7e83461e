"""Times gpuhunt on a directory of catalogue files; prints one JSON object.

usage: beside_gpuhunt.py DIR QUERIES REPEATS
"""

import json
import resource
import statistics
import sys
import time

from gpuhunt._internal import storage
from gpuhunt._internal.catalog import Catalog, OFFLINE_PROVIDERS, ProviderCatalog


def resident_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 1e6


def main(directory, queries, repeats):
    catalog = Catalog(auto_reload=False)
    before = resident_mb()
    started = time.process_time()
    for provider in OFFLINE_PROVIDERS:
        with open(f"{directory}/{provider}.csv", newline="", encoding="utf-8") as file:
            catalog.catalog[provider] = ProviderCatalog("1", list(storage.load(file, provider=provider)))
    loaded = time.process_time() - started
    resident = resident_mb() - before
    catalog.loaded_at = time.monotonic()
    result = {"load": loaded * 1e3, "resident": resident}
    for name, query in queries:
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            catalog.query(**json.loads(query))[:100]
            times.append(time.perf_counter() - started)
        result[name] = statistics.median(times) * 1e3
    print(json.dumps(result))


main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
