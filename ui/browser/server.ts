/** The built server, with a folder of its own, this machine as its instance, and tasks as processes. */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const ADMIN = "admin-of-the-browser-tests";

/** What is started as the server. */
interface Kind {
  /** The variable that names it. */
  program: string;
  options: string[];
}

export class Server {
  private process: ChildProcess | undefined;
  private constructor(
    readonly url: string,
    private readonly port: number,
    private readonly home: string,
    private readonly kind: Kind,
  ) {}

  static async start(kind: Kind = { program: "DSTACK_TEST_DSTACK", options: [] }): Promise<Server> {
    const port = await freePort();
    const server = new Server(`http://127.0.0.1:${port}`, port, mkdtempSync(join(tmpdir(), "dstack-browser-")), kind);
    await server.run();
    return server;
  }

  /** Starts it (again), with what it had before. */
  async run(): Promise<void> {
    const child = spawn(needed(this.kind.program), ["server", "-y", "--port", String(this.port), "--token", ADMIN, ...this.kind.options], {
      env: {
        PATH: process.env["PATH"] ?? "",
        HOME: this.home,
        DSTACK_AGENT_PATH: needed("DSTACK_TEST_AGENT"),
        DSTACK_LOCAL_RUNTIME: "process",
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.process = child;
    let said = "";
    await new Promise<void>((resolve, reject) => {
      const hear = (chunk: Buffer) => {
        said += chunk.toString();
        if (said.includes(" is running at")) resolve();
      };
      child.stdout.on("data", hear);
      child.stderr.on("data", hear);
      child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${said}`)));
    });
  }

  /** Ends it as a crash would. */
  async kill(): Promise<void> {
    const child = this.process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  /** Ends it, what it left running, and its folder. */
  async stop(): Promise<void> {
    await this.kill();
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name) && name !== String(process.pid))) {
      const names = (file: string) => {
        try {
          return readFileSync(`/proc/${pid}/${file}`, "latin1").includes(this.home);
        } catch {
          return false;
        }
      };
      if (names("environ") || names("cmdline")) {
        try {
          process.kill(Number(pid), "SIGKILL");
        } catch {
          // It has ended by itself.
        }
      }
    }
    rmSync(this.home, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }

  async call<T = unknown>(path: string, body: unknown = {}, token = ADMIN): Promise<T> {
    const response = await fetch(`${this.url}/api/${path}`, {
      method: "POST",
      headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${path}: ${response.status} ${text}`);
    return JSON.parse(text) as T;
  }

  /** Submits a task, and gives its id. */
  async submit(name: string, commands: string[]): Promise<string> {
    return this.apply(name, { type: "task", commands });
  }

  /** Submits a run, and gives its id. */
  async apply(name: string, what: object): Promise<string> {
    const configuration = { ...what, resources: { cpu: "1..", memory: "0.1GB..", disk: "1GB.." } };
    const run = await this.call<{ id: string }>("project/main/runs/apply", { force: false, plan: { run_spec: { run_name: name, configuration }, current_resource: null } });
    return run.id;
  }

  /** Waits until a run has one of these statuses. */
  async until(id: string, ...statuses: string[]): Promise<void> {
    for (;;) {
      const run = await this.call<{ status: string }>("project/main/runs/get", { id });
      if (statuses.includes(run.status)) return;
      if (["done", "failed", "terminated"].includes(run.status)) throw new Error(`the run is ${run.status}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

export function needed(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; run the tests with: cargo xtask ui --test`);
  return value;
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const listener = createServer();
    listener.on("error", reject);
    listener.listen(0, "127.0.0.1", () => {
      const address = listener.address();
      listener.close(() => resolve(typeof address === "object" && address ? address.port : 0));
    });
  });
}
