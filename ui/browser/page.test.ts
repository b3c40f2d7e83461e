/** The page in Debian's Chromium, against the built server with a runner on this machine. */

import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { ADMIN, freePort, Server } from "./server";
import { button, faultsOf, heading, type Look, quiet, shoot, Visitors } from "./visitor";

let server: Server;
/** Another one, which is a cloud to the first. */
let cloud: Server;
let visitors: Visitors;

beforeAll(async () => {
  [server, cloud, visitors] = await Promise.all([Server.start(), Server.start(), Visitors.come(() => server.url)]);
});

afterEach(async () => {
  expect(await visitors.leave()).toEqual({ complaints: [], hacks: [] });
});

afterAll(async () => {
  await visitors?.close();
  await Promise.all([server?.stop(), cloud?.stop()]);
});

const open = (path: string, look?: Look): Promise<Page> => visitors.open(path, look);
/** How long what is asked for again and again may take. */
const PATIENCE = { timeout: 30_000 };

test("who is not signed in signs in, and gets to where they wanted", async () => {
  const page = await open("/events?project_name=main", { token: null });
  await heading(page, "Sign in to dstack");
  await page.getByLabel("Token").fill("wrong");
  await button(page, "Sign in").click();
  await page.getByText("No active user has this token").waitFor();
  await page.getByLabel("Token").fill(ADMIN);
  await page.keyboard.press("Enter");
  await heading(page, "Events");
  expect(new URL(page.url()).search).toBe("?project_name=main");
  await page.getByRole("link", { name: "Sign out" }).click();
  await heading(page, "Sign in to dstack");
  expect(await page.evaluate(() => localStorage.getItem("dstack.token"))).toBeNull();
});

test("an empty server leads to a first run in three steps", async () => {
  const page = await open("/runs");
  await page.getByRole("heading", { name: "Three steps to a first run" }).waitFor();
  const steps = page.getByRole("listitem").filter({ has: page.getByRole("heading", { level: 3 }) });
  expect((await steps.getByRole("heading").allInnerTexts()).map((text) => text.replace(/\s+/g, " "))).toEqual(["A place to run Done", "Something to run Next", "Watch it Later"]);
  await page.getByText("Fleet local of main: the machine of this server").waitFor();
  for (const [width, scheme] of [[1440, "light"], [360, "dark"]] as const) {
    await page.setViewportSize({ width, height: 900 });
    expect(await faultsOf(page, scheme)).toEqual([]);
    await shoot(page, `first-steps-${width}-${scheme}`);
  }
  await page.getByRole("link", { name: "A task" }).click();
  await heading(page, "Launch");
  // What was begun is known, and where it stands.
  await page.getByRole("textbox", { name: "Configuration" }).click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("# mine");
  await page.getByText("Why: it fits").waitFor();
  await page.goto(`${server.url}/runs`);
  await page.getByRole("heading", { name: "Something to run Done" }).waitFor();
  await page.getByRole("link", { name: "A task" }).click();
  await page.getByText("# mine").waitFor();
  await page.getByText("Why: it fits").waitFor();
  await button(page, "Launch").click();
  await heading(page, "hello");
  await page.getByText("Done", { exact: true }).first().waitFor();
  await page.goto(`${server.url}/runs`);
  await page.getByText("Nothing runs now").waitFor();
  await button(page, "Show finished ones").click();
  await page.getByRole("row", { name: /hello/ }).waitFor();
  expect(await page.getByText("Three steps").count()).toBe(0);
});

test("who is in no project is told what to do", async () => {
  await server.call("users/create", { username: "noa", global_role: "user" });
  const { creds } = await server.call<{ creds: { token: string } }>("users/get_user", { username: "noa" });
  const page = await open("/runs", { token: creds.token });
  await page.getByText("You are in no project yet").waitFor();
  expect(await faultsOf(page, "light")).toEqual([]);
  await page.getByRole("link", { name: "Create a project" }).click();
  await heading(page, "Create project");
});

test("a backend is added by its form: what is missing or wrong is said at its field, and its offers come", async () => {
  const page = await open("/projects/main");
  await page.getByRole("link", { name: "Add backend" }).click();
  await heading(page, "Add backend");
  await page.getByLabel("Search by name").fill("another");
  await page.getByRole("link", { name: /Another dstack server/ }).click();
  await heading(page, /^Add backend: Another dstack server/);
  const [url, project, token] = [page.getByLabel("URL"), page.getByLabel("Project"), page.getByLabel("API token")];
  await button(page, "Save").click();
  expect(await page.getByText("This is needed.").count()).toBe(3);
  await expect.poll(() => url.evaluate((field) => field === document.activeElement), PATIENCE).toBe(true);
  expect(await faultsOf(page, "light")).toEqual([]);
  expect(await faultsOf(page, "dark")).toEqual([]);
  await shoot(page, "backend-missing");
  await url.fill(cloud.url);
  await project.fill("main");
  await token.fill("wrong");
  expect(await token.getAttribute("type")).toBe("password");
  await button(page, "Save").click();
  await page.locator("fieldset[data-path]", { has: token }).getByText("Invalid credentials").waitFor();
  await expect.poll(() => token.evaluate((field) => field === document.activeElement), PATIENCE).toBe(true);
  await shoot(page, "backend-refused");
  await token.fill(ADMIN);
  await button(page, "Save").click();
  await page.getByText("Saved: the credentials were accepted").waitFor();
  // The other server divides its machine into blocks, which are not offered to others: what would come then is answered here.
  await page.getByText("Nothing yet. It is asked for again").waitFor();
  await page.route("**/runs/get_plan", async (route) => {
    const { run_spec } = route.request().postDataJSON() as { run_spec: { configuration: { backends: string[] } } };
    expect(run_spec.configuration.backends).toEqual(["dstack"]);
    const plan = await server.call<{ job_plans: { offers: object[] }[] }>("project/main/runs/get_plan", { run_spec: { ...run_spec, configuration: { ...run_spec.configuration, backends: null } }, for_offers_only: true });
    const offers = plan.job_plans[0]?.offers.map((offer) => ({ ...offer, backend: "dstack", region: "far" }));
    await route.fulfill({ json: { ...plan, job_plans: [{ ...plan.job_plans[0], offers, total_offers: offers?.length }] } });
  });
  await page.getByRole("table", { name: "Offers" }).getByText("dstack far").waitFor();
  await shoot(page, "backend-saved");
  expect(await server.call("project/main/backends/dstack/config_info")).toMatchObject({ url: cloud.url, creds: { api_token: ADMIN } });
});

test("what was saved of a backend is not shown again, and stays; the form and YAML say the same", async () => {
  const page = await open("/projects/main/backends/dstack");
  await heading(page, /^Another dstack server/);
  const token = page.getByLabel("API token");
  expect([await token.inputValue(), await token.getAttribute("placeholder")]).toEqual(["", "Saved, and stays as it is"]);
  // To another address it is not sent.
  const url = page.getByLabel("URL");
  await url.fill("http://127.0.0.1:9");
  await button(page, "Save").click();
  await page.getByText("What was saved is not sent to another address").waitFor();
  expect(await token.getAttribute("placeholder")).toBe("For the new address, type it again");
  // It is marked in the text, too; what is drawn there is what the content policy lets through.
  await button(page, "As YAML").click();
  await page.locator(".cm-lintRange-error").first().waitFor();
  await button(page, "As a form").click();
  await url.fill(cloud.url);
  await page.getByText("What was saved is not sent to another address").waitFor({ state: "detached" });
  expect(await token.getAttribute("placeholder")).toBe("Saved, and stays as it is");
  await page.getByText("More settings").click();
  await button(page, "Add backend").click();
  await page.getByRole("textbox", { name: "Backend 1" }).fill("remote");
  await button(page, "As YAML").click();
  await page.getByText("- remote").waitFor();
  expect(await page.content()).not.toContain(ADMIN);
  await page.getByRole("textbox", { name: "Configuration of the backend" }).click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("# of the team");
  await button(page, "As a form").click();
  expect(await page.getByRole("textbox", { name: "Backend 1" }).inputValue()).toBe("remote");
  await button(page, "As YAML").click();
  await page.getByText("# of the team").waitFor();
  await button(page, "Save").click();
  await page.getByText("Saved: the credentials were accepted").waitFor();
  expect(await server.call("project/main/backends/dstack/config_info")).toMatchObject({ backends: ["remote"], creds: { api_token: ADMIN } });
  // What was saved, and cannot be read again, is not edited on as if it had been.
  let reads = 0;
  await page.route("**/backends/dstack/config_info", (route) => {
    reads += 1;
    return reads === 1 ? route.continue() : route.fulfill({ status: 400, json: { detail: [{ msg: "not now", code: "error" }] } });
  });
  await button(page, "Save").click();
  await page.getByText("It was saved, and could not be read again since").waitFor();
  expect([await url.isDisabled(), await button(page, "Save").isDisabled()]).toEqual([true, true]);
  await page.unroute("**/backends/dstack/config_info");
  await button(page, "Read again").click();
  await expect.poll(() => url.isEnabled(), PATIENCE).toBe(true);
  // What another has changed meanwhile is not overwritten.
  await server.call("project/main/backends/update", asBackend());
  await button(page, "Save").click();
  await page.getByText("Somebody else has changed the backend meanwhile").waitFor();
});

test("a run that waits says why, as a picture and in words", async () => {
  const configuration = { type: "task", commands: ["true"], retry: { on_events: ["no-capacity"], duration: "1h" }, resources: { cpu: "999..", memory: "0.1GB..", disk: "1GB.." } };
  const { id } = await server.call<{ id: string }>("project/main/runs/apply", { force: true, plan: { run_spec: { run_name: "patient", configuration }, current_resource: null } });
  const page = await open(`/projects/main/runs/${id}`);
  await heading(page, "patient");
  const why = page.getByRole("region", { name: "Why: it does not fit" });
  await why.waitFor();
  await why.getByRole("heading", { name: "Fleet local" }).waitFor();
  await why.getByText(/1 instance: has \d+ CPUs, wanted 999\.\., none left/).first().waitFor();
  await why.getByText("As a table").click();
  await why.getByRole("table", { name: "What is left after each check" }).getByText("Fleet local").waitFor();
  for (const [width, scheme] of [[1440, "light"], [360, "dark"]] as const) {
    await page.setViewportSize({ width, height: 900 });
    expect(await faultsOf(page, scheme)).toEqual([]);
    await shoot(page, `waiting-${width}-${scheme}`);
  }
  await server.call("project/main/runs/stop", { runs_names: ["patient"], abort: true });
});

test("a run is launched, its output comes, and it is stopped", async () => {
  const page = await open("/runs/launch");
  await heading(page, "Launch");
  const editor = page.getByRole("textbox", { name: "Configuration" });
  await editor.click();
  await page.keyboard.press("Control+A");
  // The editor itself deletes, and what is typed at once is not lost; writing over coloured text, Chromium would bring the colour along as an inline style.
  await page.keyboard.press("Delete");
  await page.keyboard.insertText("type: task\nname: walk\ncommands:\n  - for i in $(seq 1 100000); do echo step $i; sleep 0.2; done\nresources:\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 9999GB..\n");
  await page.getByText("Nothing that the project has fits").waitFor();
  await page.getByRole("heading", { name: "The smallest changes that make it fit" }).waitFor();
  await shoot(page, "launch-explained");
  await editor.click();
  await page.keyboard.press("Control+A");
  // The editor itself deletes, and what is typed at once is not lost; writing over coloured text, Chromium would bring the colour along as an inline style.
  await page.keyboard.press("Delete");
  await page.keyboard.insertText("type: task\nname: walk\ncommands:\n  - for i in $(seq 1 100000); do echo step $i; sleep 0.2; done\nresources:\n  cpu: 1..\n  memory: 0.1GB..\n  disk: 1GB..\n");
  await page.getByText("Why: it fits").waitFor();
  await button(page, "Launch").click();
  await heading(page, "walk");
  await page.getByText("Running", { exact: true }).first().waitFor();
  const asked: { start_time?: string; descending?: boolean }[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/logs/poll")) asked.push(request.postDataJSON() as object);
  });
  await page.getByRole("link", { name: "Logs" }).click();
  await page.getByText(/^step \d+$/).first().waitFor();
  const last = Number((await page.getByText(/^step \d+$/).last().textContent())?.slice(5));
  // It follows.
  await page.getByText(`step ${last + 10}`, { exact: true }).waitFor();
  // It asks for what is new only, from the end.
  expect(asked.at(-1)).toMatchObject({ descending: true, start_time: expect.stringMatching(/^20/) });
  await shoot(page, "logs");
  await button(page, "Stop").click();
  await page.getByText("dstack stop walk -y --project main").waitFor({ state: "attached" });
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await page.getByText("Stopped", { exact: true }).waitFor();
  await page.getByRole("link", { name: "Details" }).click();
  await page.getByText("terminated by user").or(page.getByText("stopped by user")).or(page.getByText("Terminated", { exact: true })).first().waitFor();
});

test("what is typed into an editor stands there, and is kept until it is applied", async () => {
  const page = await open("/runs/launch");
  const editor = page.getByRole("textbox", { name: "Configuration" });
  await editor.click();
  await page.keyboard.press("Control+End");
  await page.keyboard.press("#");
  await page.keyboard.press("/");
  await page.keyboard.type("typed/here");
  await page.getByText("#/typed/here").waitFor();
  expect(await page.getByRole("combobox", { name: "Where to" }).count()).toBe(0);
  await page.reload();
  await page.getByText("This is what you have not applied yet").waitFor();
  await page.getByText("#/typed/here").waitFor();
  await button(page, "Start anew").click();
  await page.getByText("#/typed/here").waitFor({ state: "detached" });
  await page.reload();
  await editor.waitFor();
  expect(await page.getByText("This is what you have not applied yet").count()).toBe(0);
});

test("a run is taken into the editor, and into nothing that the browser keeps", async () => {
  const id = await server.submit("confidential", ["true # the password is xyzzy"]);
  await server.until(id, "done");
  const page = await open(`/projects/main/runs/${id}`);
  await page.getByRole("link", { name: "Edit and run", exact: true }).click();
  await heading(page, "Launch");
  const password = page.getByText("the password is xyzzy");
  await password.waitFor();
  expect(page.url()).toBe(`${server.url}/runs/launch?project_name=main&from=main%2F${id}`);
  const isKept = () => page.evaluate(() => JSON.stringify([history.state, { ...sessionStorage }, { ...localStorage }]).includes("xyzzy"));
  expect(await isKept()).toBe(false);
  await page.reload();
  await password.waitFor();
  // What is written is kept by the tab, apart from what was started from something else, until one signs out.
  await page.getByRole("textbox", { name: "Configuration" }).click();
  await page.keyboard.press("Control+End");
  await page.keyboard.type("# mine");
  await expect.poll(isKept).toBe(true);
  await button(page, "service").click();
  await password.waitFor({ state: "detached" });
  expect(new URL(page.url()).search).toBe("?project_name=main&kind=service");
  await page.goBack();
  await page.getByText("This is what you have not applied yet").waitFor();
  await page.getByText("# mine").waitFor();
  await page.getByRole("link", { name: "Sign out" }).click();
  await heading(page, "Sign in to dstack");
  expect(await isKept()).toBe(false);
});

test("links into the page work, and so does going back", async () => {
  const id = await server.submit("short", ["echo done"]);
  await server.until(id, "done");
  const page = await open(`/projects/main/runs/${id}/inspect`);
  await heading(page, "short");
  await page.getByText('"run_name": "short"').waitFor();
  await page.getByRole("link", { name: "Events" }).last().click();
  await page.getByText("Run submitted. Status: SUBMITTED").waitFor();
  await page.goBack();
  await page.getByText('"run_name": "short"').waitFor();
  await page.goto(`${server.url}/projects/main/runs/00000000-0000-4000-8000-000000000000`);
  await heading(page, "No such run");
  await page.goto(`${server.url}/no/such/page`);
  await heading(page, "There is no such page");
});

test("filters stand in the address, and finished runs are deleted", async () => {
  const page = await open("/runs?only_active=false");
  const row = page.getByRole("row", { name: /short/ });
  await row.waitFor();
  await page.getByLabel("Project").selectOption("main");
  await page.waitForURL(/project_name=main/);
  await page.reload();
  await row.waitFor();
  expect(await page.getByLabel("Project").inputValue()).toBe("main");
  await row.getByRole("checkbox").check();
  await button(page, "Delete").click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await row.waitFor({ state: "detached" });
});

/** What would do something if it were taken for markup, an address, or a program. */
const HOSTILE = [
  `<script>window.hacked = 1</script>`,
  `<img src=x onerror="window.hacked = 2">`,
  `"><svg onload=window.hacked=3>`,
  `javascript:window.hacked=4`,
  `\${window.hacked=5}{{constructor.constructor('window.hacked=6')()}}`,
  `</textarea><iframe srcdoc="<script>parent.hacked=7</script>">`,
  `\u001b]8;;javascript:window.hacked=8\u0007click\u001b]8;;\u0007`,
];

test("hostile output, secrets and configurations are text", async () => {
  const lines = HOSTILE.map((text) => Buffer.from(`${text}\n`).toString("base64"));
  const id = await server.submit("hostile", [...lines.map((line) => `echo ${line} | base64 -d`), "sleep 3"]);
  await server.until(id, "done");
  const page = await open("/healthcheck", { bypassCSP: true });
  // Agents leave escape sequences out; output that was stored by others has them.
  await page.route("**/logs/poll", async (route) => {
    const answer = await route.fetch();
    const body = (await answer.json()) as { logs: object[] };
    const { start_time } = route.request().postDataJSON() as { start_time?: string };
    const message = Buffer.from(`${HOSTILE[6]}\n\u001b[31mred\u001b[0m plain\n`).toString("base64");
    if (start_time === undefined) body.logs.unshift({ timestamp: new Date().toISOString(), log_source: "stderr", message });
    await route.fulfill({ response: answer, json: body });
  });
  await page.goto(`${server.url}/projects/main/runs/${id}/logs`);
  await page.getByText("<script>window.hacked = 1</script>", { exact: true }).waitFor();
  await page.getByText('"><svg onload=window.hacked=3>', { exact: true }).waitFor();
  await page.getByText("click", { exact: true }).waitFor();
  expect(await page.getByText("red", { exact: true }).getAttribute("class")).toBe("fg-1");
  await shoot(page, "logs-hostile");
  await page.getByRole("link", { name: "Inspect" }).click();
  await page.getByText('"run_name": "hostile"').waitFor();

  for (const text of HOSTILE.slice(0, 3)) {
    await page.goto(`${server.url}/runs?only_active=false&project_name=${encodeURIComponent(text)}`);
    await heading(page, "Runs");
    await page.getByText("No run matches the filters").waitFor();
    expect(await page.getByLabel("Project").inputValue()).toBe(text);
  }
  await page.goto(`${server.url}/runs/launch?yaml=${encodeURIComponent(`type: task\nname: ${HOSTILE[1]}\ncommands: [x]`)}`);
  await page.getByText("The server would refuse this").waitFor();
  await page.goto(`${server.url}/auth/token?to=${encodeURIComponent("javascript:window.hacked=9")}`);
  await page.getByLabel("Token").fill(ADMIN);
  await page.keyboard.press("Enter");
  await heading(page, "Runs");
  expect(visitors.hacks).toEqual([]);
});

test("what is no text would be noticed, and the content policy stops it", async () => {
  const write = (page: Page) => page.evaluate((html) => document.body.insertAdjacentHTML("beforeend", html), HOSTILE[1] ?? "");
  const careless = await open("/runs", { bypassCSP: true });
  await heading(careless, "Runs");
  await write(careless);
  await expect.poll(() => visitors.hacks, PATIENCE).toEqual([2]);
  visitors.hacks = [];
  const careful = await open("/runs");
  await heading(careful, "Runs");
  await write(careful);
  await expect.poll(() => visitors.complaints.filter((complaint) => complaint.includes("Content Security Policy")), PATIENCE).toHaveLength(1);
  visitors.complaints = [];
  expect(visitors.hacks).toEqual([]);
});

test("what a member may not do is not shown, and refused", async () => {
  await server.call("users/create", { username: "mia", global_role: "user" });
  const { creds } = await server.call<{ creds: { token: string } }>("users/get_user", { username: "mia" });
  await server.call("projects/main/add_members", { members: [{ username: "mia", project_role: "user" }] });
  const page = await open("/projects/main", { token: creds.token });
  await heading(page, "main");
  await page.getByRole("cell", { name: "mia" }).waitFor();
  for (const name of ["Add backend", "Add gateway", "Add secret", "Add member", "Delete project", "Remove", "Make public"]) {
    expect(await page.getByText(name, { exact: true }).count(), name).toBe(0);
  }
  for (const name of ["Users", "Doctor"]) expect(await page.getByRole("link", { name, exact: true }).count(), name).toBe(0);
  await page.goto(`${server.url}/doctor`);
  await page.getByText("You may not see or do this").waitFor();
  await page.goto(`${server.url}/projects/main/backends/aws`);
  await page.getByText("You may not see or do this").waitFor();
  // Another tab, and an administrator who takes the membership away while the page is open.
  await page.goto(`${server.url}/projects/main`);
  await heading(page, "main");
  await server.call("projects/main/remove_members", { usernames: ["mia"] });
  await page.reload();
  await page.getByText("You may not see or do this").waitFor();
});

test("a token that is replaced leads to signing in, and back", async () => {
  await server.call("users/create", { username: "leo", global_role: "admin" });
  const { creds } = await server.call<{ creds: { token: string } }>("users/get_user", { username: "leo" });
  const page = await open("/fleets?only_active=true", { token: creds.token });
  await page.getByRole("link", { name: "local", exact: true }).waitFor();
  const renewed = await server.call<{ creds: { token: string } }>("users/refresh_token", { username: "leo" });
  await page.getByText("Your token is not good any more").waitFor();
  await page.getByLabel("Token").fill(renewed.creds.token);
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: "local", exact: true }).waitFor();
  expect(new URL(page.url()).pathname).toBe("/fleets");
});

test("a late refusal of an earlier token ends no later session", async () => {
  await server.call("users/create", { username: "ada", global_role: "user" });
  const { creds } = await server.call<{ creds: { token: string } }>("users/get_user", { username: "ada" });
  let release: () => void = () => undefined;
  const released = new Promise<void>((resolve) => (release = resolve));
  const page = await open("/healthcheck", { token: creds.token });
  await page.route("**/api/users/public_keys/list", async (route) => {
    await released;
    await route.continue();
  });
  await page.goto(`${server.url}/users/ada`);
  await button(page, "Replace").click();
  await page.getByRole("dialog").getByRole("button", { name: "Replace" }).click();
  await page.getByText("Replaced").waitFor();
  const late = page.waitForResponse((answer) => answer.url().endsWith("/public_keys/list") && !answer.ok());
  release();
  await (await late).finished();
  await page.getByRole("link", { name: "Projects", exact: true }).first().click();
  await heading(page, "Projects");
  expect(await page.evaluate(() => localStorage.getItem("dstack.token"))).not.toBe(creds.token);
});

test("an edit that began before another one is not saved over it", async () => {
  await server.call("users/create", { username: "kim", global_role: "user", email: "kim@one.test" });
  const page = await open("/users/kim/edit");
  const palette = page.getByRole("combobox", { name: "Where to" });
  /** Asks the server for something, after the first time with what was fetched then. */
  const openPalette = async () => {
    await page.keyboard.press("Control+k");
    await palette.waitFor();
  };
  const closePalette = async () => {
    await page.keyboard.press("Escape");
    await palette.waitFor({ state: "detached" });
  };
  await heading(page, "Edit kim");
  await openPalette();
  await closePalette();
  await page.getByLabel("E-mail").fill("kim@two.test");
  await server.call("users/update", { username: "kim", global_role: "user", email: "kim@three.test", active: true });
  // What the page reads anew by itself, as after the server was away, is not taken for what the edit began with.
  await server.kill();
  const isMissed = async () => {
    await openPalette();
    const missed = page.getByText("The server does not answer").first().waitFor({ state: "attached", timeout: 5000 });
    const is = await missed.then(() => true, () => false);
    await closePalette();
    return is;
  };
  await expect.poll(isMissed, PATIENCE).toBe(true);
  const reread = page.waitForResponse((answer) => answer.url().endsWith("/users/get_user") && answer.ok());
  await server.run();
  await (await reread).finished();
  await button(page, "Save").click();
  await page.getByText("Somebody else has changed kim meanwhile (email), so nothing was saved.").waitFor();
  expect(await server.call("users/get_user", { username: "kim" })).toMatchObject({ email: "kim@three.test" });
  await page.reload();
  await expect.poll(() => page.getByLabel("E-mail").inputValue(), PATIENCE).toBe("kim@three.test");
  await page.getByLabel("E-mail").fill("kim@four.test");
  await button(page, "Save").click();
  await heading(page, "kim");
  await page.getByText("kim@four.test").waitFor();
});

test("what cannot be read is not shown as none", async () => {
  const page = await open("/healthcheck");
  const refuse = (path: string) => page.route(`**/api/${path}`, (route) => route.fulfill({ status: 500, json: { detail: [{ msg: "The disk is full", code: null }] } }));
  await refuse("project/main/gateways/list");
  await refuse("volumes/list");
  await refuse("users/tokens/list");
  for (const [path, none] of [["/gateways", "No gateways"], ["/volumes", "No volumes"], ["/users/admin", "There are none. Programs get"]] as const) {
    await page.goto(server.url + path);
    await page.getByText("The disk is full").waitFor();
    expect(await page.getByText(none).count(), path).toBe(0);
  }
});

test("a dialog is closed by a click beside it, and not by one that began in it", async () => {
  const page = await open("/users/admin");
  await button(page, "Make token").click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("long name");
  await dialog.getByLabel("Name", { exact: true }).hover();
  await page.mouse.down();
  await page.mouse.move(5, 5);
  await page.mouse.up();
  expect(await dialog.getByLabel("Name", { exact: true }).inputValue()).toBe("long name");
  await page.mouse.click(5, 5);
  await dialog.waitFor({ state: "detached" });
});

test("a page that is gone after an update of the server is loaded anew, once", async () => {
  const page = await open("/runs");
  await heading(page, "Runs");
  let loads = 0;
  let isThereAfter = 1;
  page.on("request", (request) => {
    if (request.isNavigationRequest()) loads += 1;
  });
  await page.route(/\/assets\/(doctor|models|palette)-[^/]*\.js$/, (route) => (loads < isThereAfter ? route.fulfill({ status: 404 }) : route.continue()));
  await page.getByRole("link", { name: "Doctor", exact: true }).click();
  await heading(page, "Doctor");
  expect(loads).toBe(1);
  isThereAfter = Infinity;
  await page.getByRole("link", { name: "Models", exact: true }).click();
  await page.getByText("A part of this page cannot be fetched").waitFor();
  expect(loads).toBe(1);
  // What is on the page stays where only the search is missing.
  await page.goto(`${server.url}/runs`);
  await heading(page, "Runs");
  await page.keyboard.press("/");
  await page.getByRole("region", { name: "Messages" }).getByText("A part of this page cannot be fetched").waitFor();
  expect(loads).toBe(2);
  // What else fails is told to who looks after the page, too.
  expect(visitors.complaints.every((complaint) => complaint.includes("cannot be fetched"))).toBe(true);
  visitors.complaints = [];
});

test("members, secrets and tokens are added and taken away", async () => {
  const page = await open("/projects/main");
  await page.getByLabel("User name or e-mail address").fill("leo");
  await button(page, "Add member").click();
  await page.getByRole("cell", { name: "leo", exact: true }).waitFor();
  await button(page, "Add secret").click();
  await page.getByLabel("Name", { exact: true }).fill("key");
  await page.getByLabel("Value", { exact: true }).fill("<b>very</b> secret");
  await button(page, "Save").click();
  await page.getByRole("cell", { name: "key", exact: true }).waitFor();
  expect(await server.call("project/main/secrets/get", { name: "key" })).toMatchObject({ value: "<b>very</b> secret" });
  await page.getByRole("row", { name: /key/ }).getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("cell", { name: "key", exact: true }).waitFor({ state: "detached" });

  await page.goto(`${server.url}/users/admin`);
  await button(page, "Make token").click();
  await page.getByLabel("Name", { exact: true }).fill("ci");
  await button(page, "Make").click();
  await page.getByText("It is shown now and never again.").waitFor();
  const token = (await page.getByRole("dialog").locator("pre").textContent()) ?? "";
  expect(await server.call("users/get_my_user", {}, token)).toMatchObject({ username: "admin" });
  await button(page, "I have it").click();
  await page.getByRole("cell", { name: "ci", exact: true }).waitFor();
});

test("a server that goes away is missed, and found again", async () => {
  const page = await open("/runs?only_active=false");
  await page.getByRole("row", { name: /hostile/ }).waitFor();
  await server.kill();
  await page.getByText("The server does not answer").first().waitFor();
  // What was shown stays.
  expect(await page.getByRole("row", { name: /hostile/ }).count()).toBe(1);
  await server.run();
  await page.getByText("The server does not answer").first().waitFor({ state: "detached" });
  const id = await server.submit("after", ["true"]);
  await page.getByRole("row", { name: /after/ }).waitFor();
  await server.until(id, "done");
});

test.each([
  { status: 429, text: "The server is busy with many" },
  { status: 503, text: "The disk of the database is full" },
])("a server that asks with $status to wait is waited for, and says why", async ({ status, text }) => {
  const id = await server.submit(`patient-${status}`, ["true"]);
  await server.until(id, "done");
  const page = await open("/healthcheck");
  let asked = 0;
  await page.route("**/runs/get", (route) => {
    asked += 1;
    return asked <= 6 ? route.fulfill({ status, headers: { "Retry-After": "1" }, json: { detail: text } }) : route.continue();
  });
  await page.goto(`${server.url}/projects/main/runs/${id}`);
  await page.getByText(text).waitFor();
  const first = page.getByRole("heading", { level: 1 });
  await first.waitFor();
  expect(await first.textContent()).toBe(`patient-${status}`);
  await page.getByText(text).waitFor({ state: "detached" });
  expect(asked).toBeGreaterThan(6);
});

/** Has the server answer in the place of a proxy. */
function passOn(incoming: IncomingMessage, answer: ServerResponse, path: string): void {
  const { port } = new URL(server.url);
  const forwarded = request({ host: "127.0.0.1", port, method: incoming.method, path, headers: incoming.headers }, (from) => {
    answer.writeHead(from.statusCode ?? 500, from.headers);
    from.pipe(answer);
  });
  answer.on("close", () => forwarded.destroy());
  forwarded.on("error", () => answer.destroy());
  incoming.pipe(forwarded);
}

async function proxied(hear: (incoming: IncomingMessage, answer: ServerResponse) => void): Promise<{ url: string; close: () => void }> {
  const proxy = createServer(hear);
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const address = proxy.address();
  const close = () => {
    proxy.close();
    proxy.closeAllConnections();
  };
  return { url: `http://127.0.0.1:${typeof address === "object" && address ? address.port : 0}`, close };
}

/** The server, but for what it tells of changes: that is told here. */
async function fed() {
  const feed = { asked: [] as { query: string; after: string | undefined }[], isKnown: true, isOpen: false, last: 0 };
  let stream: ServerResponse | undefined;
  const tell = (event: string, data: object = {}) => stream?.write(`id: test-${(feed.last += 1)}\nevent: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
  const proxy = await proxied((incoming, answer) => {
    const [path = "", query = ""] = (incoming.url ?? "").split("?");
    if (path !== "/api/changes/follow") return passOn(incoming, answer, incoming.url ?? "");
    feed.asked.push({ query, after: incoming.headers["last-event-id"] as string | undefined });
    if (!feed.isKnown) return void answer.writeHead(404, { "Content-Type": "application/json" }).end('{"detail":"Not Found"}');
    answer.writeHead(200, { "Content-Type": "text/event-stream" });
    stream = answer;
    feed.isOpen = true;
    answer.on("close", () => (feed.isOpen = stream !== answer && feed.isOpen));
    tell("hello");
  });
  return Object.assign(feed, { url: proxy.url, close: proxy.close, tell, drop: () => stream?.destroy(), changed: (...changes: object[]) => tell("changes", { changes }) });
}

/** Has the page think that its tab is seen, or is not. */
const see = (page: Page, state: "visible" | "hidden") =>
  page.evaluate((is) => {
    Object.defineProperty(document, "visibilityState", { configurable: true, get: () => is });
    Object.defineProperty(document, "hidden", { configurable: true, get: () => is === "hidden" });
    document.dispatchEvent(new Event("visibilitychange"));
  }, state);

test("what the server tells of is read at once, and nothing is asked for else", async () => {
  const feed = await fed();
  try {
    const page = await open("/healthcheck");
    let lists = 0;
    page.on("request", (asked) => {
      if (asked.url().endsWith("/api/runs/list")) lists += 1;
    });
    await page.goto(`${feed.url}/runs?only_active=false`);
    await page.getByRole("table", { name: "Runs" }).waitFor();
    // What was read while the page began to be told is read once more.
    await page.waitForTimeout(3000);
    const first = lists;
    const id = await server.submit("untold", ["true"]);
    await page.waitForTimeout(7000);
    expect([lists, await page.getByRole("row", { name: /untold/ }).count(), feed.asked]).toEqual([first, 0, [{ query: "", after: undefined }]]);
    feed.changed({ kind: "moon" }, { kind: "run", id });
    await page.getByRole("row", { name: /untold/ }).waitFor({ timeout: 1000 });

    // Another connection takes the place of one that ends; a tab that nobody sees has none.
    const { last } = feed;
    feed.drop();
    await expect.poll(() => feed.asked.at(-1)?.after, PATIENCE).toBe(`test-${last}`);
    await see(page, "hidden");
    await expect.poll(() => feed.isOpen, PATIENCE).toBe(false);
    const connections = feed.asked.length;
    await see(page, "visible");
    await expect.poll(() => feed.isOpen, PATIENCE).toBe(true);
    expect(feed.asked.slice(connections)).toEqual([{ query: "", after: `test-${last + 1}` }]);

    // What may have been missed is read.
    await server.submit("missed", ["true"]);
    feed.tell("reset");
    await page.getByRole("row", { name: /missed/ }).waitFor({ timeout: 2000 });

    // Where it is told no more, it is asked for.
    feed.isKnown = false;
    feed.drop();
    await server.submit("asked-for", ["true"]);
    await page.getByRole("row", { name: /asked-for/ }).waitFor();
    const before = lists;
    await expect.poll(() => lists, PATIENCE).toBeGreaterThan(before + 1);
  } finally {
    feed.close();
  }
});

test("output is read when the server tells of it", async () => {
  const feed = await fed();
  const id = await server.submit("talkative", ["while true; do date +%s.%N; sleep 0.1; done"]);
  try {
    await server.until(id, "running");
    const page = await open("/healthcheck");
    let polls = 0;
    page.on("request", (asked) => {
      if (asked.url().endsWith("/logs/poll")) polls += 1;
    });
    await page.goto(`${feed.url}/projects/main/runs/${id}/logs`);
    const line = page.getByText(/^\d+\.\d+$/).last();
    await line.waitFor();
    await expect.poll(() => feed.asked.at(-1)?.query, PATIENCE).toBe(`run_id=${id}`);
    // What was to be read before the page was told is read by then.
    await page.waitForTimeout(3000);
    const [said, before] = [await line.textContent(), polls];
    await page.waitForTimeout(4000);
    expect([polls, await line.textContent()]).toEqual([before, said]);
    feed.changed({ kind: "logs", id });
    await expect.poll(() => line.textContent(), { timeout: 1000 }).not.toBe(said);
    // Whoever looks at something else is not told of output.
    await page.getByRole("link", { name: "Details" }).click();
    await expect.poll(() => feed.asked.at(-1)?.query, PATIENCE).toBe("");
  } finally {
    feed.close();
    await server.call("project/main/runs/stop", { runs_names: ["talkative"], abort: true });
  }
});

test("what changes is seen within a quarter of a second", async () => {
  const page = await open("/healthcheck");
  const isTold = page.waitForResponse((answer) => answer.url().includes("/api/changes/follow") && answer.ok());
  await page.goto(`${server.url}/runs?only_active=false`);
  await page.getByRole("table", { name: "Runs" }).waitFor();
  await isTold;
  await quiet(page);
  await page.evaluate(() => {
    const seen: Record<string, number> = {};
    Object.assign(window, { seen });
    new MutationObserver(() => {
      for (const link of document.querySelectorAll("tbody a.name")) seen[link.textContent ?? ""] ??= Date.now();
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
  });
  const seenAt = (name: string) => page.evaluate((own) => (window as unknown as { seen: Record<string, number> }).seen[own] ?? 0, name);
  const waits: number[] = [];
  for (let at = 0; at < 20; at += 1) {
    const id = await server.submit(`quick-${at}`, ["true"]);
    const now = Date.now();
    await expect.poll(() => seenAt(`quick-${at}`), PATIENCE).toBeGreaterThan(0);
    waits.push((await seenAt(`quick-${at}`)) - now);
    await server.until(id, "done");
  }
  waits.sort((a, b) => a - b);
  console.log(`from the answer to who submits until a run is seen: ${waits[10]} ms (median), ${waits.at(-1)} ms (longest of ${waits.length})`);
  // What is aimed at is 250 ms for 99 of 100 (docs/ui.md); the rest is room for machines with other work. Without being told it would be seconds.
  expect(waits[10]).toBeLessThan(250);
  expect(waits.at(-1)).toBeLessThan(1500);
});

test("the page works below another path, and asks nobody else", async () => {
  const proxy = await proxied((incoming, answer) => {
    const path = incoming.url ?? "";
    if (path.startsWith("/below/here/")) passOn(incoming, answer, path.slice("/below/here".length));
    else answer.writeHead(418).end();
  });
  const base = `${proxy.url}/below/here`;
  try {
    const page = await open("/healthcheck", { token: null });
    const elsewhere: string[] = [];
    page.on("request", (asked) => {
      if (!asked.url().startsWith(`${base}/`)) elsewhere.push(asked.url());
    });
    await page.goto(`${base}/projects/main`);
    await page.getByLabel("Token").fill(ADMIN);
    await page.keyboard.press("Enter");
    await heading(page, "main");
    await page.getByText(`--url ${base} `).waitFor();
    await page.getByRole("link", { name: "Fleets", exact: true }).click();
    await page.getByRole("link", { name: "local", exact: true }).click();
    await heading(page, "local");
    expect(page.url()).toContain(`${base}/projects/main/fleets/`);
    await page.reload();
    await heading(page, "local");
    expect(elsewhere).toEqual([]);
  } finally {
    proxy.close();
  }
});

test("the keyboard goes everywhere", async () => {
  const page = await open("/offers");
  await heading(page, "Offers");
  await page.keyboard.press("/");
  await page.getByRole("combobox", { name: "Where to" }).fill("hosti");
  await page.getByRole("option", { name: /hostile/ }).waitFor();
  await page.keyboard.press("Enter");
  await heading(page, "hostile");
  await page.keyboard.press("/");
  await page.getByRole("combobox", { name: "Where to" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("combobox", { name: "Where to" }).waitFor({ state: "detached" });
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Where to" }).fill("project");
  await page.keyboard.press("Enter");
  await heading(page, "Projects");
});

/** What the first server has to be told to use the other one. */
const asBackend = () => ({ type: "dstack", url: cloud.url, project: "main", creds: { type: "api_token", api_token: ADMIN } });

async function routes(): Promise<string[]> {
  // Where this test runs alone, none was added before it.
  const { backends } = await server.call<{ backends: unknown[] }>("projects/main/get");
  if (backends.length === 0) await server.call("project/main/backends/create", asBackend());
  const [run] = (await server.call<{ id: string; run_spec: { run_name: string } }[]>("runs/list", { limit: 100 })).filter((each) => each.run_spec.run_name === "hostile");
  const [fleet] = await server.call<{ id: string; instances: { id: string }[] }[]>("fleets/list", { only_active: true });
  const project = "/projects/main";
  return [
    "/auth/token",
    "/runs?only_active=false",
    "/runs/launch",
    `${project}/runs/${run?.id}`,
    `${project}/runs/${run?.id}/logs`,
    `${project}/runs/${run?.id}/metrics`,
    `${project}/runs/${run?.id}/events`,
    `${project}/runs/${run?.id}/inspect`,
    `${project}/runs/${run?.id}/jobs/hostile-0-0`,
    "/offers",
    "/fleets",
    `${project}/fleets/${fleet?.id}`,
    `${project}/fleets/${fleet?.id}/offers`,
    `${project}/fleets/add`,
    "/instances",
    `${project}/instances/${fleet?.instances[0]?.id}`,
    "/volumes",
    "/gateways",
    `${project}/gateways/add`,
    "/costs",
    "/models",
    "/projects",
    "/projects/add",
    project,
    `${project}/backends/add`,
    `${project}/backends/add?type=aws`,
    `${project}/backends/add?type=slurm`,
    `${project}/backends/dstack`,
    "/users",
    "/users/add",
    "/users/admin",
    "/users/admin/projects",
    "/users/mia/edit",
    "/events",
    "/doctor",
  ];
}

test.each([{ width: 1440 }, { width: 360 }])("every route is accessible at $width in light and dark, and fits", { timeout: 120_000 }, async ({ width }) => {
  const all = await routes();
  const page = await open("/runs", { width });
  await heading(page, "Runs");
  const faults: string[] = [];
  for (const path of all) {
    await page.goto(server.url + path);
    await page.locator("h1").waitFor();
    await page.getByRole("status").filter({ hasText: "Loading" }).first().waitFor({ state: "detached" });
    if (/^No such/.test(await page.locator("h1").innerText())) faults.push(`${path}: there is no such thing`);
    for (const scheme of ["light", "dark"] as const) {
      for (const fault of await faultsOf(page, scheme)) faults.push(`${path} in ${scheme}: ${fault}`);
      const name = path.replace(/\?type=/, "-").split("?")[0]?.replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "id").replaceAll("/", "_").slice(1);
      await shoot(page, `${name}-${width}-${scheme}`);
    }
  }
  expect(faults).toEqual([]);
});

test("the first load is small, and kept", async () => {
  const page = await open("/healthcheck", { token: null });
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  const transferred = new Map<string, number>();
  const urls = new Map<string, string>();
  session.on("Network.responseReceived", (event) => urls.set(event.requestId, event.response.url));
  session.on("Network.loadingFinished", (event) => transferred.set(urls.get(event.requestId) ?? event.requestId, event.encodedDataLength));
  await page.evaluate((token) => localStorage.setItem("dstack.token", token), ADMIN);
  await page.goto(`${server.url}/runs`);
  await heading(page, "Runs");
  await quiet(page);
  const files = [...transferred].filter(([url]) => !url.includes("/api/"));
  const onTheWire = files.reduce((sum, [, size]) => sum + size, 0);
  const unpacked = await page.evaluate(() => (performance.getEntriesByType("resource") as PerformanceResourceTiming[]).filter((entry) => !entry.name.includes("/api/")).reduce((sum, entry) => sum + entry.decodedBodySize, 0));
  console.log(`first load of /runs: ${files.length} files, ${onTheWire} bytes on the wire, ${unpacked} unpacked`);
  expect(onTheWire).toBeGreaterThan(10_000);
  expect(onTheWire).toBeLessThan(160_000);
  expect(unpacked).toBeLessThan(500_000);
  const script = await fetch(`${server.url}/${await page.evaluate(() => new URL((document.querySelector("script[src]") as HTMLScriptElement).src).pathname.slice(1))}`);
  expect(script.headers.get("cache-control")).toContain("immutable");
});

/** A run as the server has it, many times: the answers to lists are of this number of runs. */
async function pretendRuns(page: Page, number: number, change: (run: Listed, at: number) => void = () => undefined): Promise<void> {
  const listed = await server.call<Listed[]>("runs/list", { limit: 100, job_submissions_limit: 1 });
  const real = listed.find((run) => run.jobs[0]?.job_submissions[0]?.job_provisioning_data);
  if (!real) throw new Error("there is no run to be like");
  const start = Date.parse("2026-03-01T00:00:00Z");
  const all = Array.from({ length: number }, (_, at) => {
    const digits = String(at).padStart(12, "0");
    const run = structuredClone(real);
    Object.assign(run, { id: `00000000-0000-4000-8000-${digits}`, submitted_at: new Date(start - at * 1000).toISOString(), run_spec: { ...run.run_spec, run_name: `run-${at}` } });
    change(run, at);
    return run;
  });
  await page.route("**/api/runs/list", (route) => {
    const { prev_run_id, limit = 100 } = route.request().postDataJSON() as { prev_run_id?: string; limit?: number };
    const from = prev_run_id === undefined ? 0 : Number(prev_run_id.slice(-12)) + 1;
    return route.fulfill({ json: all.slice(from, from + limit) });
  });
}

interface Listed {
  id: string;
  submitted_at: string;
  run_spec: { run_name: string };
  jobs: { job_submissions: { submitted_at: string; finished_at: string | null; job_provisioning_data: { price: number } | null }[] }[];
}

test("a list of 10,000 runs draws those that are seen, and scrolls", { timeout: 180_000 }, async () => {
  const page = await open("/healthcheck");
  await pretendRuns(page, 10_000);
  await page.goto(`${server.url}/runs?only_active=false`);
  const table = page.getByRole("table", { name: "Runs" });
  await table.waitFor();
  const known = async () => Number(await table.getAttribute("aria-rowcount")) - 1;
  const drawn = () => page.locator("tbody tr:not(.gap)").count();
  let most = 0;
  while ((await known()) < 10_000) {
    const before = await known();
    await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
    await expect.poll(known, PATIENCE).toBeGreaterThan(before);
    most = Math.max(most, await drawn());
  }
  await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
  await page.getByRole("link", { name: "run-9999", exact: true }).waitFor();
  // Through all of it, and back to the top.
  const frames = await page.evaluate(async () => {
    const times: number[] = [];
    let last = performance.now();
    const end = document.body.scrollHeight;
    for (let at = 0; at < 120; at += 1) {
      window.scrollTo(0, (end * at) / 120);
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      times.push(now - last);
      last = now;
    }
    window.scrollTo(0, 0);
    return times.sort((a, b) => a - b);
  });
  await page.getByRole("link", { name: "run-0", exact: true }).waitFor();
  most = Math.max(most, await drawn());
  const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
  console.log(`10,000 runs: ${most} rows and ${nodes} elements at most; frames of ${frames[60]?.toFixed(1)} ms (median), ${frames[114]?.toFixed(1)} ms (95 of 100)`);
  expect(most).toBeGreaterThan(10);
  expect(most).toBeLessThan(100);
  expect(nodes).toBeLessThan(5000);
});

/** Answers for the server what a job has printed: so many lines, in pages of these many, the newest first. */
async function pretendOutput(page: Page, lines: number, perPage: number, text: (line: number) => string): Promise<void> {
  const perEvent = 1000;
  await page.route("**/logs/poll", (route) => {
    const { next_token } = route.request().postDataJSON() as { next_token?: string };
    const end = next_token === undefined ? lines : Number(next_token);
    const start = Math.max(0, end - perPage);
    const logs = [];
    for (let from = end - perEvent; from >= start; from -= perEvent) {
      const message = Buffer.from(Array.from({ length: perEvent }, (_, at) => `${text(from + at)}\n`).join("")).toString("base64");
      logs.push({ timestamp: new Date(Date.UTC(2026, 2, 1) + from).toISOString(), log_source: "stdout", message });
    }
    return route.fulfill({ json: { logs, next_token: start > 0 ? String(start) : null, external_url: null } });
  });
}

test("a million lines are read, searched and scrolled through", { timeout: 300_000 }, async () => {
  const id = await server.submit("long", ["true"]);
  await server.until(id, "done");
  const page = await open("/healthcheck");
  const lines = 1_000_000;
  await pretendOutput(page, lines, 20_000, (line) => (line % 1000 === 7 ? `\u001b[31mError\u001b[0m at ${line}` : `step ${line} of a very long way`));
  await page.goto(`${server.url}/projects/main/runs/${id}/logs`);
  await page.getByText(`step ${lines - 1} of a very long way`, { exact: true }).waitFor();
  await page.evaluate(() => {
    const tasks: number[] = [];
    Object.assign(window, { tasks });
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => tasks.push(entry.duration))).observe({ type: "longtask" });
  });
  await page.getByRole("searchbox").fill("error at");
  await page.getByText("20 of 20", { exact: true }).waitFor();
  await page.locator(".line.current").getByText("at 999007", { exact: false }).waitFor();
  await button(page, "Search older output too").click();
  await page.getByText("1,000 of 1,000", { exact: true }).waitFor({ timeout: 240_000 });
  expect(await page.getByText("lines so far").count()).toBe(0);
  // To the oldest one, and what is around it.
  await page.getByRole("searchbox").press("Shift+Enter");
  await page.getByText("1 of 1,000", { exact: true }).waitFor();
  await page.locator(".line.current").getByText(/at 7$/).first().waitFor();
  expect(await page.locator(".line.current").evaluate((line) => {
    const [own, box] = [line.getBoundingClientRect(), line.closest(".log")?.getBoundingClientRect()];
    return box !== undefined && own.top >= box.top && own.bottom <= box.bottom;
  })).toBe(true);
  await page.getByText("step 0 of a very long way", { exact: true }).waitFor();
  await shoot(page, "logs-million");
  const tasks = (await page.evaluate(() => (window as unknown as { tasks: number[] }).tasks)).sort((a, b) => b - a);

  const log = page.getByRole("log", { name: "Output" });
  const frames = await log.evaluate(async (view) => {
    const times: number[] = [];
    let last = performance.now();
    for (let at = 0; at < 120; at += 1) {
      view.scrollTop += 3000;
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      times.push(now - last);
      last = now;
    }
    return times.sort((a, b) => a - b);
  });
  const drawn = await page.locator(".line").count();
  await button(page, "To the end").click();
  await page.getByText(`step ${lines - 1} of a very long way`, { exact: true }).waitFor();
  console.log(`1,000,000 lines: ${drawn} drawn; frames of ${frames[60]?.toFixed(1)} ms (median), ${frames[114]?.toFixed(1)} ms (95 of 100); longest tasks while they were read and searched: ${tasks.slice(0, 3).map((ms) => ms.toFixed(0)).join(", ")} ms`);
  expect(drawn).toBeGreaterThan(20);
  expect(drawn).toBeLessThan(500);
});

test("what is missing of output is marked, and read when one asks for it", async () => {
  const id = await server.submit("chatty", ["sleep 1000"]);
  await server.until(id, "running");
  const page = await open("/healthcheck");
  const start = Date.now() - 1_000_000;
  const event = (number: number) => ({ timestamp: new Date(start + number * 1000).toISOString(), log_source: "stdout", message: Buffer.from(`said ${number}\n`).toString("base64") });
  let said = 3;
  await page.route("**/logs/poll", (route) => {
    const { next_token, start_time } = route.request().postDataJSON() as { next_token?: string; start_time?: string };
    const end = next_token === undefined ? said : Number(next_token);
    const all = Array.from({ length: end }, (_, number) => event(number)).filter(({ timestamp }) => start_time === undefined || timestamp > start_time);
    return route.fulfill({ json: { logs: all.slice(-2).toReversed(), next_token: all.length > 2 ? String(end - 2) : null, external_url: null } });
  });
  await page.goto(`${server.url}/projects/main/runs/${id}/logs`);
  await page.getByText("said 2", { exact: true }).waitFor();
  said = 20;
  const missing = page.getByText("More was printed here than this page reads on at once");
  await missing.waitFor();
  await page.getByText("said 19", { exact: true }).waitFor();
  const shown = async () => (await page.locator(".line").allInnerTexts()).map((text) => Number(text.slice(5)));
  expect(await shown()).toEqual(expect.arrayContaining([1, 2, 10, 19]));
  expect(await shown()).not.toContain(5);
  for (const scheme of ["light", "dark"] as const) expect(await faultsOf(page, scheme)).toEqual([]);
  await shoot(page, "logs-gap");
  while ((await missing.count()) > 0) {
    const { length } = await shown();
    await button(page, "Read what is missing").click();
    await expect.poll(async () => (await shown()).length, PATIENCE).toBeGreaterThan(length);
  }
  await expect.poll(shown, PATIENCE).toEqual(Array.from({ length: 20 }, (_, number) => number));
  await server.call("project/main/runs/stop", { runs_names: ["chatty"], abort: true });
});

test("costs are added up from what the server lists", async () => {
  const page = await open("/healthcheck");
  const hour = 3_600_000;
  const now = Date.now();
  await pretendRuns(page, 250, (run, at) => {
    const [submission] = run.jobs[0]?.job_submissions ?? [];
    if (!submission?.job_provisioning_data) throw new Error("the run had no machine");
    // Two hours each, one run an hour; 48 cost 1 dollar an hour. None of those is cut by the beginning of a day: what was left of it would get less while the page is read.
    Object.assign(submission, { submitted_at: new Date(now - (at + 2) * hour).toISOString(), finished_at: new Date(now - at * hour).toISOString() });
    submission.job_provisioning_data = { ...submission.job_provisioning_data, price: at < 20 || (at >= 30 && at < 58) ? 1 : 0 };
    Object.assign(run, { user: at % 2 ? "mia" : "leo", submitted_at: submission.submitted_at });
  });
  await page.goto(`${server.url}/costs?by=user`);
  await page.getByText("The newest 250 runs").waitFor();
  await page.getByText("$96.00", { exact: true }).waitFor();
  const row = page.getByRole("table", { name: "Costs by user" }).getByRole("row", { name: /leo/ });
  expect(await row.innerText()).toMatch(/24\s+\$48\.00/);
  await page.getByLabel("Range").selectOption("24h");
  await page.waitForURL(/range=24h/);
  await page.getByText("$40.00", { exact: true }).waitFor();
  await page.getByLabel("Added up by").selectOption("run");
  await page.getByRole("link", { name: "run-3", exact: true }).waitFor();
  for (const [width, scheme] of [[1440, "light"], [360, "dark"]] as const) {
    await page.setViewportSize({ width, height: 900 });
    expect(await faultsOf(page, scheme)).toEqual([]);
    await shoot(page, `costs-${width}-${scheme}`);
  }
});

/** Milliseconds, but for the shift, which has no unit. */
interface Figures {
  firstPaint: number;
  largestPaint: number;
  blocking: number;
  shift: number;
  usable: number;
}

test("the page is quick where the processor is four times slower", async () => {
  const page = await open("/healthcheck");
  const session = await page.context().newCDPSession(page);
  await session.send("Emulation.setCPUThrottlingRate", { rate: 4 });
  await session.send("Network.enable");
  await session.send("Network.setCacheDisabled", { cacheDisabled: true });
  await page.addInitScript(() => {
    const seen = { largestPaint: 0, shift: 0, tasks: [] as { start: number; duration: number }[], usable: 0 };
    Object.assign(window, { seen });
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (seen.largestPaint = entry.startTime))).observe({ type: "largest-contentful-paint", buffered: true });
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => seen.tasks.push({ start: entry.startTime, duration: entry.duration }))).observe({ type: "longtask", buffered: true });
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (seen.shift += (entry as PerformanceEntry & { value: number }).value))).observe({ type: "layout-shift", buffered: true });
    new MutationObserver(() => {
      if (seen.usable === 0 && document.querySelector("tbody tr a")) seen.usable = performance.now();
    }).observe(document, { childList: true, subtree: true });
  });
  const measure = async (): Promise<Figures> => {
    await page.goto(`${server.url}/runs?only_active=false`);
    await page.getByRole("table", { name: "Runs" }).waitFor();
    await quiet(page);
    return page.evaluate(() => {
      const { seen } = window as unknown as { seen: { largestPaint: number; shift: number; tasks: { start: number; duration: number }[]; usable: number } };
      const firstPaint = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Infinity;
      // What a task takes beyond 50 ms keeps others waiting, from the first paint on.
      const blocking = seen.tasks.filter((task) => task.start + task.duration > firstPaint).reduce((sum, task) => sum + Math.max(0, task.duration - 50), 0);
      return { firstPaint, largestPaint: seen.largestPaint, blocking, shift: seen.shift, usable: seen.usable };
    });
  };
  // A machine that has other work now is not what is measured: the best of three counts.
  const all = [await measure(), await measure(), await measure()].sort((a, b) => a.usable - b.usable);
  const [best] = all;
  if (!best) throw new Error("nothing was measured");
  const ms = (value: number) => `${value.toFixed(0)} ms`;
  for (const each of all) console.log(`4x slower, nothing kept: usable after ${ms(each.usable)}, first contentful paint ${ms(each.firstPaint)}, largest ${ms(each.largestPaint)}, blocked for ${ms(each.blocking)}, shift ${each.shift.toFixed(3)}`);
  expect(best.usable).toBeGreaterThan(0);
  // What is aimed at is 1 s (docs/ui.md); the rest is room for machines with other work.
  expect(best.usable).toBeLessThan(2500);
  expect(best.largestPaint).toBeLessThan(2500);
  expect(best.blocking).toBeLessThan(1000);
  expect(best.shift).toBeLessThan(0.1);
});

test("a model that is served answers in the page, and says so when it does not", async () => {
  const program = new URL("../../tests/python/openai_model.py", import.meta.url).pathname;
  const port = await freePort();
  const id = await server.apply("talker", {
    type: "service",
    port,
    model: "org/echo",
    commands: [`exec python3 ${program} ${port} org/echo`],
    probes: [{ type: "http", url: "/v1/models", interval: 1 }],
  });
  await server.until(id, "running");
  const listed = async () => (await fetch(`${server.url}/proxy/models/main/models`, { headers: { Authorization: `Bearer ${ADMIN}` } })).text();
  await expect.poll(listed, PATIENCE).toContain("org/echo");

  const page = await open("/projects/main/models/talker");
  await heading(page, "org/echo");
  const chat = page.getByRole("log", { name: "Chat" });
  const said = async (text: string) => (await chat.innerText()).split(text).length - 1;
  const say = async (text: string) => {
    await page.getByRole("textbox", { name: "Message" }).fill(text);
    await page.getByRole("textbox", { name: "Message" }).press("Enter");
  };
  await say("one two three");
  // The question, and the model's echo of it.
  await expect.poll(() => said("one two three"), PATIENCE).toBe(2);
  await shoot(page, "chat");
  await say("fail");
  await page.getByText("The model answered with status 400").waitFor();
  await server.call("project/main/runs/stop", { runs_names: ["talker"], abort: true });
  // What was said stays, and that the model is gone is said beside it.
  await page.getByText("It is served no more").waitFor();
  expect(await said("one two three")).toBe(2);
  // It may answer until it has ended.
  await expect.poll(listed, PATIENCE).not.toContain("org/echo");
  await say("is anybody there");
  await page.getByText("The model answered with status 404").waitFor();
});
