/** Charts of what a job uses. */

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { get } from "../api/client";
import { MEASURES_MS } from "../api/queries";
import type { Metric } from "../api/types";
import { bytes } from "../logic/format";
import { type Chart, charts } from "../logic/metrics";
import { clock } from "../logic/time";
import { Empty, Failure, Loading } from "./basic";

const HEIGHT = 200;
/** So many measures are shown, the newest. */
const MOST_MEASURES = 1000;

interface Props {
  project: string;
  runName: string;
  runId: string;
  replica: number;
  job: number;
  isLive: boolean;
}

export function Metrics({ project, runName, runId, replica, job, isLive }: Props) {
  const query = useQuery({
    queryKey: ["metrics", project, runId, replica, job],
    queryFn: ({ signal }) =>
      get<{ metrics: Metric[] }>(
        "/api/project/{project_name}/metrics/job/{run_name}",
        { project_name: project, run_name: runName },
        { run_id: runId, replica_num: String(replica), job_num: String(job), limit: String(MOST_MEASURES) },
        signal,
      ),
    refetchInterval: isLive ? MEASURES_MS : false,
  });
  if (query.isPending) return <Loading what="metrics" />;
  const shown = charts(query.data?.metrics ?? []);
  const isCut = (shown[0]?.times.length ?? 0) >= MOST_MEASURES;
  return (
    <>
      <Failure error={query.error} />
      {!query.data ? null : shown.length === 0 ? (
        <Empty title="Nothing was measured yet">
          <p>A running job is measured every ten seconds.</p>
        </Empty>
      ) : (
        <>
          {isCut && <p className="muted" role="status">The newest {MOST_MEASURES.toLocaleString("en")} measures are shown.</p>}
          <div className="charts">
            {shown.map((chart) => (
              <Picture key={chart.title} chart={chart} />
            ))}
          </div>
        </>
      )}
    </>
  );
}

function shownValue(chart: Chart, value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (chart.unit === "percent") return `${value.toFixed(value < 10 ? 1 : 0)} %`;
  return chart.unit === "bytes" ? bytes(value) : `${bytes(value)}/s`;
}

/** What the picture says, in words. */
function summary(chart: Chart): string {
  return chart.series
    .map((series) => {
      const numbers = series.values.filter((value) => value !== null);
      const most = numbers.length === 0 ? null : numbers.reduce((a, b) => Math.max(a, b));
      return `${series.name}: now ${shownValue(chart, series.values.at(-1))}, at most ${shownValue(chart, most)}`;
    })
    .join("; ");
}

function Picture({ chart }: { chart: Chart }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = `${chart.title} ${chart.series.length} ${chart.limit}`;
  const data = [chart.times, ...chart.series.map((series) => series.values)] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(chart, element.clientWidth), latest.current, element);
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    const scheme = new MutationObserver(make);
    scheme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resized.disconnect();
      scheme.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
    // A chart is made anew when its shape changes; values are set below.
  }, [shape]);
  useEffect(() => plot.current?.setData(latest.current), [chart]);
  return (
    <figure className="card chart">
      <figcaption>
        <h2>{chart.title}</h2>
        <p className="muted">{summary(chart)}{chart.limit !== null && chart.unit === "bytes" && ` (of ${bytes(chart.limit)})`}</p>
      </figcaption>
      <div ref={place} role="img" aria-label={`${chart.title}. ${summary(chart)}`} />
    </figure>
  );
}

function options(chart: Chart, width: number): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = [style.getPropertyValue("--muted").trim(), style.getPropertyValue("--border").trim()];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  const top = chart.limit ?? undefined;
  return {
    width,
    height: HEIGHT,
    legend: { show: chart.series.length > 1 },
    cursor: { y: false },
    scales: { y: { range: (_, __, max) => [0, Math.max(top ?? 1, max)] } },
    axes: [{ ...axis, space: 80, values: (_, splits) => splits.map((seconds) => clock(new Date(seconds * 1000).toISOString())) }, { ...axis, size: chart.unit === "bytes a second" ? 80 : 64, values: (_, splits) => splits.map((value) => shownValue(chart, value)) }],
    series: [
      {},
      ...chart.series.map((series, at) => ({
        label: series.name,
        stroke: style.getPropertyValue(`--series-${at % 6}`).trim(),
        width: 2,
        points: { show: false },
        value: (_: uPlot, value: number | null) => shownValue(chart, value),
      })),
    ],
  };
}
