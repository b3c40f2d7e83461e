/** Who looks at the page in a browser, and what they notice. */

import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { ADMIN, needed } from "./server";

const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const shots = needed("DSTACK_TEST_SHOTS");

export interface Look {
  width?: number;
  scheme?: "light" | "dark";
  token?: string | null;
  /** Without the content policy: what it would have stopped is done. */
  bypassCSP?: boolean;
}

export class Visitors {
  private readonly contexts: BrowserContext[] = [];
  /** What the browser complained of: refusals of the content policy, failed scripts. */
  complaints: string[] = [];
  /** What was run that was meant to be text. */
  hacks: unknown[] = [];
  private constructor(
    private readonly browser: Browser,
    private readonly url: () => string,
  ) {}

  static async come(url: () => string): Promise<Visitors> {
    mkdirSync(shots, { recursive: true });
    return new Visitors(await chromium.launch({ executablePath: needed("DSTACK_TEST_CHROMIUM"), args: ["--no-sandbox"] }), url);
  }

  async open(path: string, { width = 1280, scheme = "light", token = ADMIN, bypassCSP = false }: Look = {}): Promise<Page> {
    const context = await this.browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, bypassCSP });
    this.contexts.push(context);
    await context.exposeFunction("wasHacked", (by: unknown) => void this.hacks.push(by));
    // In every document, since what was set in one is gone with it.
    await context.addInitScript(() => {
      const { wasHacked } = window as unknown as { wasHacked: (by: unknown) => void };
      Object.defineProperty(window, "hacked", { set: (by: unknown) => wasHacked(by) });
    });
    // Only on a page that does not know any: who signs out stays so.
    await context.addInitScript((own) => {
      if (own !== null && localStorage.getItem("seeded") === null) localStorage.setItem("dstack.token", own);
      localStorage.setItem("seeded", "yes");
    }, token);
    const page = await context.newPage();
    page.on("pageerror", (error) => this.complaints.push(String(error)));
    page.on("console", (message) => {
      // The browser itself tells of answers with a status of refusal.
      if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) this.complaints.push(message.text());
    });
    await page.goto(this.url() + path);
    return page;
  }

  /** Closes all pages, and tells what was noticed on them. */
  async leave(): Promise<{ complaints: string[]; hacks: unknown[] }> {
    await Promise.all(this.contexts.splice(0).map((context) => context.close()));
    const noticed = { complaints: this.complaints, hacks: this.hacks };
    this.complaints = [];
    this.hacks = [];
    return noticed;
  }

  async close(): Promise<void> {
    await this.browser.close();
  }
}

/** A picture for people. The caret is left as it is: hiding it would need a style that the page's policy refuses. */
export const shoot = (page: Page, name: string) => page.screenshot({ path: join(shots, `${name}.png`), caret: "initial" });

export const heading = (page: Page, name: string | RegExp) => page.getByRole("heading", { level: 1, name }).waitFor();

/** Waits until the page has asked for nothing new for half a second. What it is told of changes by never ends. */
export const quiet = (page: Page) =>
  page.evaluate(async () => {
    const done = () => performance.getEntriesByType("resource").length;
    for (let before = -1; before !== done(); ) {
      before = done();
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  });

export const button = (page: Page, name: string) => page.getByRole("button", { name, exact: true });

/** What is wrong with a page as it is: too wide, or not accessible. */
export async function faultsOf(page: Page, scheme: "light" | "dark"): Promise<string[]> {
  await page.emulateMedia({ colorScheme: scheme });
  const tooWide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  return [...(tooWide > 0 ? [`${tooWide} pixels too wide`] : []), ...(await violations(page))];
}

interface Violation {
  id: string;
  nodes: { html: string; failureSummary: string }[];
}

/** What breaks WCAG 2.2 on level A or AA. */
async function violations(page: Page): Promise<string[]> {
  // A script of the test's own: the page's policy lets none in but through the debugger.
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run: (context: object, options: object) => Promise<{ violations: Violation[] }> } };
    const result = await axe.run({ include: ["html"] }, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"] });
    return result.violations;
  });
  return found.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html} ${node.failureSummary}`).join(" | ")}`);
}
