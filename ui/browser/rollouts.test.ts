/** Roll-outs of a service on the page of its run, against the built server: both deployments run on this machine. */

import type { Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { freePort, Server } from "./server";
import { button, faultsOf, heading, shoot, Visitors } from "./visitor";

/** How long what is asked for again and again may take. */
const PATIENCE = { timeout: 30_000 };

let server: Server;
let visitors: Visitors;
let port: number;
let id: string;

beforeAll(async () => {
  [server, visitors, port] = await Promise.all([Server.start(), Visitors.come(() => server.url), freePort()]);
  id = await apply("first", { strategy: "canary" });
  await server.until(id, "running");
});

afterEach(async () => {
  expect(await visitors.leave()).toEqual({ complaints: [], hacks: [] });
});

afterAll(async () => {
  await visitors?.close();
  await server?.stop();
});

/** Deploys the service so that its answers are of this deployment. Replicas of this machine share its ports, so they listen on one together. */
async function apply(said: string, rollout: object): Promise<string> {
  const program = `import http.server as h; s = h.ThreadingHTTPServer; s.allow_reuse_port = True; s(("127.0.0.1", ${port}), h.SimpleHTTPRequestHandler).serve_forever()`;
  const configuration = {
    type: "service",
    port,
    auth: false,
    commands: [`echo ${said}`, `exec python3 -c '${program}'`],
    probes: [{ type: "http", url: "/", interval: 1 }],
    rollout,
    resources: { cpu: "1..", memory: "0.1GB..", disk: "1GB.." },
  };
  const run = await server.call<{ id: string }>("project/main/runs/apply", { force: true, plan: { run_spec: { run_name: "web", configuration } } });
  return run.id;
}

async function ask(times: number): Promise<void> {
  for (let at = 0; at < times; at += 1) await (await fetch(`${server.url}/proxy/services/main/web/`)).arrayBuffer();
}

interface Service {
  deployment_num: number;
  run_spec: { configuration: { commands: string[] } };
  jobs: { job_submissions: { id: string; deployment_num: number; status: string }[] }[];
}

/** What the service asks for, and its replicas that run. */
async function running() {
  const { deployment_num: deployment, run_spec, jobs } = await server.call<Service>("project/main/runs/get", { id });
  const replicas = jobs.flatMap((job) => job.job_submissions).filter((each) => each.status === "running").map(({ id, deployment_num }) => ({ id, deployment_num }));
  return { deployment, says: run_spec.configuration.commands[0], replicas };
}

/** How often the page has asked how far a roll-out is. */
function asked(page: Page): { times: number } {
  const counted = { times: 0 };
  page.on("request", (request) => {
    if (request.url().endsWith("/runs/get_rollout")) counted.times += 1;
  });
  return counted;
}

const region = (page: Page) => page.getByRole("region", { name: "Roll-out" });
const now = (page: Page) => region(page).locator("[aria-current=step]");
const row = (page: Page, deployment: number) => page.getByRole("row", { name: new RegExp(`Deployment ${deployment} `) });

test("nothing is told, and nothing asked for, where there is no roll-out", async () => {
  const task = await server.submit("no-service", ["true"]);
  await server.until(task, "done");
  const page = await visitors.open("/healthcheck");
  const counted = asked(page);
  await page.goto(`${server.url}/projects/main/runs/${task}`);
  await heading(page, "no-service");
  await page.getByRole("region", { name: "Time line" }).waitFor();
  expect(counted.times).toBe(0);
  await page.goto(`${server.url}/projects/main/runs/${id}`);
  await heading(page, "web");
  await page.getByRole("region", { name: "Time line" }).waitFor();
  await expect.poll(() => counted.times, PATIENCE).toBeGreaterThan(0);
  expect(await region(page).count()).toBe(0);
});

test("a canary is seen as it begins, with its figures, and promoted", async () => {
  const page = await visitors.open(`/projects/main/runs/${id}`, { width: 1440 });
  await heading(page, "web");
  await apply("second", { strategy: "canary", share: "50%", duration: "1h", max_error_rate: "5%", max_latency: "2s", min_requests: 1000 });
  await now(page).getByText("They get 50% of the requests, and are watched for 1h").waitFor();
  await region(page).getByText("The others follow, if the new ones stay within their bounds.").waitFor();
  await region(page).getByText(/^in (59m|1h)/).waitFor();
  await row(page, 1).getByText("1 of 1 ready").waitFor();
  await row(page, 1).getByText("judged from 1000 on").waitFor();
  await ask(40);
  // What is counted is told of by nobody: it is read again at its own pace.
  const answers = async (deployment: number) => Number((await row(page, deployment).getByRole("cell").nth(3).innerText()).split("\n")[0]);
  await expect.poll(async () => (await answers(0)) + (await answers(1)), PATIENCE).toBeGreaterThanOrEqual(40);
  expect(await answers(1)).toBeGreaterThan(0);
  await row(page, 1).getByText("0 (0.0%)").waitFor();
  await row(page, 1).getByText("at most 5%").waitFor();
  await row(page, 1).getByText("at most 2 s").waitFor();
  for (const [width, scheme] of [[1440, "light"], [1440, "dark"], [390, "light"], [390, "dark"]] as const) {
    await page.setViewportSize({ width, height: 900 });
    expect(await faultsOf(page, scheme), `${width} ${scheme}`).toEqual([]);
    await shoot(page, `rollout-${width}-${scheme}`);
  }
  await page.setViewportSize({ width: 1440, height: 900 });

  await button(page, "Promote the roll-out").click();
  const dialog = page.getByRole("dialog", { name: "Promote deployment 1 of web?" });
  await dialog.getByText("The other replicas are replaced one after another from now on").waitFor();
  await page.getByText("dstack rollout web --promote --project main").waitFor({ state: "attached" });
  expect(await faultsOf(page, "dark")).toEqual([]);
  await shoot(page, "rollout-promote");
  // What the server refuses is said where it was asked for.
  await page.route("**/runs/rollout", (route) => route.fulfill({ status: 400, json: { detail: [{ msg: "Not on a Friday", code: "error" }] } }));
  await dialog.getByRole("button", { name: "Promote" }).click();
  await dialog.getByText("Not on a Friday").waitFor();
  await page.unroute("**/runs/rollout");
  await dialog.getByRole("button", { name: "Promote" }).click();
  await dialog.waitFor({ state: "detached" });
  // The old replica is replaced, and there is nothing more to tell.
  await region(page).waitFor({ state: "detached", ...PATIENCE });
  const { deployment, replicas } = await running();
  expect([deployment, replicas.map((each) => each.deployment_num)]).toEqual([1, [1]]);
});

test("green waits for the switch, and is taken back by hand; why is told from then on", async () => {
  const page = await visitors.open(`/projects/main/runs/${id}`, { width: 390 });
  await heading(page, "web");
  const { replicas: before } = await running();
  await apply("third", { strategy: "blue_green", switch: "manual", header: { name: "x-green", value: "1" } });
  await now(page).getByText("They wait to be promoted").waitFor(PATIENCE);
  await region(page).getByText("All requests are switched when it is promoted.").waitFor();
  await region(page).getByText("x-green: 1").waitFor();
  await shoot(page, "rollout-green-390-light");
  await button(page, "Promote the roll-out").click();
  await page.getByRole("dialog").getByRole("button", { name: "Promote" }).click();
  await now(page).getByText("They get all requests, and the old ones are kept for 10m").waitFor();
  await row(page, 2).getByText("100%").waitFor();
  expect([await button(page, "Promote the roll-out").isDisabled(), await button(page, "Abort the roll-out").isEnabled()]).toEqual([true, true]);
  await button(page, "Abort the roll-out").click();
  await page.getByRole("dialog").getByText("The old replicas get the requests again").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Abort the roll-out" }).click();
  await region(page).getByText("The last roll-out was rolled back").waitFor(PATIENCE);
  await region(page).getByText("it was aborted by hand").waitFor();
  expect(await page.getByText("It failed").count()).toBe(0);
  // What was before goes on, as the last deployment.
  await expect.poll(running, PATIENCE).toEqual({ deployment: 3, says: "echo second", replicas: before.map((each) => ({ ...each, deployment_num: 3 })) });
  for (const name of ["Promote", "Abort"]) expect(await button(page, `${name} the roll-out`).count()).toBe(0);
  for (const scheme of ["light", "dark"] as const) {
    expect(await faultsOf(page, scheme)).toEqual([]);
    await shoot(page, `rollout-back-390-${scheme}`);
  }
});
