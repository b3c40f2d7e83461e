/** The page where there is much: 10,000 runs, and 1,000 instances whose hosts are simulated in the server's process. */

import { generateKeyPairSync } from "node:crypto";
import type { Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { Server } from "./server";
import { faultsOf, heading, quiet, shoot, Visitors } from "./visitor";

const FLEETS = 10;
const HOSTS_OF_FLEET = 100;
const HOSTS = FLEETS * HOSTS_OF_FLEET;
const RUNNING = 200;
const RUNS = 10_000;
/** Until all of it is there. */
const SETTING_UP_MS = 600_000;
const PATIENCE = { timeout: 30_000 };

let server: Server;
let visitors: Visitors;

beforeAll(async () => {
  [server, visitors] = await Promise.all([Server.start({ program: "DSTACK_TEST_SCALE_SERVER", options: ["--no-local"] }), Visitors.come(() => server.url)]);
  for (let number = 0; number < FLEETS; number += 1) await nameHosts(number);
  await until(async () => (await idle()) === HOSTS);
  // Those that no host can take end at once.
  await submit(RUNS - RUNNING, (number) => ({ name: `ended-${number}`, cpu: "5000.." }));
  await submit(RUNNING, (number) => ({ name: `running-${number}`, cpu: "1.." }));
  await until(async () => (await active()).every((status) => status === "running"));
  expect(await active()).toHaveLength(RUNNING);
}, SETTING_UP_MS);

afterEach(async () => {
  expect(await visitors.leave()).toEqual({ complaints: [], hacks: [] });
});

afterAll(async () => {
  await visitors?.close();
  await server?.stop();
});

async function nameHosts(number: number): Promise<void> {
  const hosts = Array.from({ length: HOSTS_OF_FLEET }, (_, host) => `10.${number}.0.${host + 1}`);
  const configuration = { type: "fleet", name: `lab-${number}`, blocks: 2, ssh_config: { user: "me", ssh_key: newKey(), hosts } };
  await server.call("project/main/fleets/apply", { plan: { spec: { configuration, profile: { name: "default" } } }, force: true });
}

/** A key that opens nothing: the hosts have no SSH. */
function newKey(): { public: string; private: string } {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const raw = Buffer.from(publicKey.export({ format: "jwk" }).x ?? "", "base64url");
  const field = (bytes: Buffer) => Buffer.concat([Buffer.from([0, 0, 0, bytes.length]), bytes]);
  const blob = Buffer.concat([field(Buffer.from("ssh-ed25519")), field(raw)]);
  return { public: `ssh-ed25519 ${blob.toString("base64")}`, private: privateKey.export({ format: "pem", type: "pkcs8" }).toString() };
}

async function idle(): Promise<number> {
  const fleets = await server.call<{ instances: { status: string }[] }[]>("fleets/list", { only_active: true });
  return fleets.flatMap((fleet) => fleet.instances).filter(({ status }) => status === "idle").length;
}

/** Submits so many tasks, some at a time. */
async function submit(number: number, what: (number: number) => { name: string; cpu: string }): Promise<void> {
  let next = 0;
  const one = async () => {
    while (next < number) {
      const { name, cpu } = what(next);
      next += 1;
      const configuration = { type: "task", commands: ["sleep 1000000"], resources: { cpu, memory: "1GB..", disk: "1GB.." } };
      await server.call("project/main/runs/apply", { force: false, plan: { run_spec: { run_name: name, configuration }, current_resource: null } });
    }
  };
  await Promise.all(Array.from({ length: 16 }, one));
}

/** What the runs do that have not ended. */
async function active(): Promise<string[]> {
  const all: string[] = [];
  let last: { id: string; submitted_at: string } | undefined;
  for (;;) {
    const from = { prev_submitted_at: last?.submitted_at ?? null, prev_run_id: last?.id ?? null };
    const page = await server.call<{ id: string; submitted_at: string; status: string }[]>("runs/list", { only_active: true, limit: 100, ...from });
    all.push(...page.map(({ status }) => status));
    last = page.at(-1);
    if (!last) return all;
  }
}

/** Waits for what the server gets to by itself; the hook has a limit. */
async function until(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) await new Promise((resolve) => setTimeout(resolve, 1000));
}

/** The milliseconds that it takes until it is there. */
async function time(what: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await what();
  return performance.now() - start;
}

/** Rows of a table that are drawn. */
const drawn = (page: Page) => page.locator("tbody tr:not(.gap)").count();

const rows = async (page: Page, table: string) => Number(await page.getByRole("table", { name: table }).getAttribute("aria-rowcount")) - 1;

test("all of the long lists can be seen, a part at a time", { timeout: 300_000 }, async () => {
  const page = await visitors.open("/runs?only_active=false");
  await heading(page, "Runs");
  await page.getByRole("table", { name: "Runs" }).waitFor();
  const known = () => rows(page, "Runs");
  let most = 0;
  while ((await known()) < RUNS) {
    const before = await known();
    await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
    await expect.poll(known, PATIENCE).toBeGreaterThan(before);
    most = Math.max(most, await drawn(page));
  }
  expect(most).toBeGreaterThan(10);
  expect(most).toBeLessThan(100);

  await page.goto(`${server.url}/instances`);
  await page.getByRole("table", { name: "Instances" }).waitFor();
  await expect
    .poll(async () => {
      await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
      return rows(page, "Instances");
    }, PATIENCE)
    .toBe(HOSTS);
  expect(await drawn(page)).toBeLessThan(100);
});

test("every list and map is quick and accessible where there is much", { timeout: 300_000 }, async () => {
  const [run] = await server.call<{ id: string }[]>("runs/list", { only_active: true, limit: 1 });
  const [fleet] = await server.call<{ id: string; instances: { id: string }[] }[]>("fleets/list", { only_active: true });
  const main = "/projects/main";
  const paths = ["/runs", "/runs?only_active=false", `${main}/runs/${run?.id}`, "/fleets", `${main}/fleets/${fleet?.id}`, "/instances", `${main}/instances/${fleet?.instances[0]?.id}`, "/costs", "/projects", main, "/events", "/doctor"];
  const page = await visitors.open("/healthcheck");
  const faults: string[] = [];
  for (const path of paths) {
    const shown = await time(async () => {
      await page.goto(server.url + path);
      await page.locator("h1").waitFor();
      await page.getByRole("status").filter({ hasText: "Loading" }).first().waitFor({ state: "detached" });
    });
    await quiet(page);
    console.log(`${path.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "ID")}: ${shown.toFixed(0)} ms`);
    for (const fault of await faultsOf(page, "light")) faults.push(`${path}: ${fault}`);
    const name = path.replace(/[?=]/g, "-").replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "id").replaceAll("/", "_").slice(1);
    await shoot(page, `large-${name}`);
  }
  expect(faults).toEqual([]);
});

test("a run that starts among thousands is seen at once", { timeout: 120_000 }, async () => {
  const page = await visitors.open("/runs");
  await page.getByRole("table", { name: "Runs" }).waitFor();
  await quiet(page);
  const waits: number[] = [];
  for (let number = 0; number < 20; number += 1) {
    await submit(1, () => ({ name: `late-${number}`, cpu: "1.." }));
    waits.push(await time(() => page.getByRole("link", { name: `late-${number}`, exact: true }).waitFor()));
  }
  waits.sort((a, b) => a - b);
  console.log(`seen after ${waits[10]?.toFixed(0)} ms in the median, ${waits.at(-1)?.toFixed(0)} ms at most`);
  expect(waits).toHaveLength(20);
});
