/** Series of a job's measures, as charts take them. */

import type { Metric } from "../api/types";

export interface Chart {
  title: string;
  unit: "percent" | "bytes" | "bytes a second";
  /** Seconds since 1970, oldest first. */
  times: number[];
  series: { name: string; values: (number | null)[] }[];
  /** The most that there is. */
  limit: number | null;
}

/** Charts of what was measured; of GPUs only where there are some, of the network where the job has one of its own. */
export function charts(metrics: Metric[]): Chart[] {
  const named = new Map(metrics.map((metric) => [metric.name, metric]));
  const numbers = (name: string) => oldestFirst(named.get(name)?.values ?? []).map((value) => (typeof value === "number" ? value : null));
  const times = oldestFirst(named.get("cpu_usage_percent")?.timestamps ?? metrics[0]?.timestamps ?? []).map((time) => Date.parse(time) / 1000);
  const latest = (name: string) => numbers(name).at(-1) ?? null;
  if (times.length === 0) return [];
  const cpus = latest("cpus_detected_num") ?? 1;
  const gpus = latest("gpus_detected_num") ?? 0;
  const each = (prefix: string) => Array.from({ length: gpus }, (_, gpu) => ({ name: `GPU ${gpu}`, values: numbers(`${prefix}_gpu${gpu}`) }));
  const shown: Chart[] = [
    {
      title: "CPU",
      unit: "percent",
      times,
      limit: 100,
      series: [{ name: cpus === 1 ? "of 1 CPU" : `of ${cpus} CPUs`, values: numbers("cpu_usage_percent").map((value) => (value === null ? null : value / Math.max(1, cpus))) }],
    },
    {
      title: "Memory",
      unit: "bytes",
      times,
      limit: latest("memory_total_bytes"),
      series: [{ name: "used", values: numbers("memory_working_set_bytes") }],
    },
  ];
  if (gpus > 0) {
    shown.push(
      { title: "GPU", unit: "percent", times, limit: 100, series: each("gpu_util_percent") },
      { title: "GPU memory", unit: "bytes", times, limit: latest("gpu_memory_total_bytes"), series: each("gpu_memory_usage_bytes") },
    );
  }
  const network = networkChart(named.get("network_receive_bytes_per_second"), named.get("network_transmit_bytes_per_second"));
  return network === null ? shown : [...shown, network];
}

/** Each of the two leaves out points of its own, where its counter began anew. */
function networkChart(received: Metric | undefined, sent: Metric | undefined): Chart | null {
  const all = new Set([...(received?.timestamps ?? []), ...(sent?.timestamps ?? [])].map((time) => Date.parse(time)));
  const times = [...all].sort((a, b) => a - b);
  const values = (metric: Metric | undefined) => {
    const known = new Map(metric?.timestamps.map((time, at) => [Date.parse(time), metric.values[at]]));
    return times.map((time) => known.get(time)).map((value) => (typeof value === "number" ? value : null));
  };
  const series = [
    { name: "received", values: values(received) },
    { name: "sent", values: values(sent) },
  ];
  return times.length === 0 ? null : { title: "Network", unit: "bytes a second", times: times.map((time) => time / 1000), limit: null, series };
}

function oldestFirst<T>(newestFirst: T[]): T[] {
  return [...newestFirst].reverse();
}
