import { expect, test } from "vitest";
import { parse } from "yaml";
import { backendType, backendTypes, begun, nextAsk } from "../src/logic/backends";
import { complete, fieldAt, isWithheld, keptSecret, lacking, pathKey, placed, secretsOf, tidy, toYaml, unknownFields, unready, withoutSecrets, withValue } from "../src/logic/config";
import { readDraft } from "../src/logic/draft";
import type { Field, Shape } from "../src/logic/fields";
import document from "virtual:backend-schema";

const ALL = Object.keys(document.schemas[document.root]?.discriminator?.mapping ?? {});
const fieldsOf = (type: string) => backendType(type)?.fields ?? [];

/** Paths of all fields that take a secret. */
function secretFields(fields: Field[], above = ""): string[] {
  const within = (shape: Shape, path: string): string[] => {
    if (shape.kind === "secret") return [path];
    if (shape.kind === "list") return within(shape.item, path);
    if (shape.kind === "group") return secretFields(shape.fields, `${path}.`);
    if (shape.kind === "variants") return shape.variants.flatMap((variant) => secretFields(variant.fields, `${path}.`));
    return [];
  };
  return fields.flatMap((field) => within(field.shape, above + field.key));
}

test("every type has a name, fields, and something secret", () => {
  expect(ALL.length).toBeGreaterThan(20);
  const found = Object.fromEntries(ALL.map((type) => [type, secretFields(fieldsOf(type)).sort().join(" ")]));
  // A new kind of credentials is to be looked at here: what is secret is told by the name of the field.
  expect(found).toEqual({
    ...Object.fromEntries(["cloudrift", "cudo", "daytona", "digitalocean", "amddevcloud", "hotaisle", "jarvislabs", "lambda", "lium", "runpod", "vastai", "vultr"].map((type) => [type, "creds.api_key"])),
    ...Object.fromEntries(["seeweb", "dstack"].map((type) => [type, "creds.api_token"])),
    ...Object.fromEntries(["aws", "crusoe"].map((type) => [type, "creds.secret_key"])),
    ...Object.fromEntries(["azure", "verda", "datacrunch"].map((type) => [type, "creds.client_secret"])),
    gcp: "creds.data",
    kubernetes: "kubeconfig.data",
    nebius: "creds.private_key_content",
    oci: "creds.key_content creds.pass_phrase",
    slurm: "clusters.private_key.content",
    tensordock: "creds.api_key creds.api_token",
  });
  for (const type of ALL) expect(backendType(type)?.name, type).toMatch(/^[A-Z].*[^.)]$/);
});

test("types are those that the server has, by name; some are of no use any more", () => {
  expect(backendTypes(["runpod", "aws", "remote", "unheard-of"]).map(({ type, name }) => [type, name])).toEqual([["aws", "Amazon Web Services"], ["runpod", "Runpod"]]);
  expect(backendType("tensordock")).toMatchObject({ name: "TensorDock", note: "dropped; the configuration is kept" });
  expect(begun(backendType("aws")!)).toEqual({ type: "aws", creds: { type: "access_key" } });
  expect(begun(backendType("kubernetes")!)).toEqual({ type: "kubernetes" });
});

test("names of no type are none", () => {
  expect(backendTypes(["constructor", "toString", "hasOwnProperty"])).toEqual([]);
});

test("fields are made from the schema", () => {
  const aws = new Map(fieldsOf("aws").map((field) => [field.key, field]));
  expect(aws.get("regions")).toMatchObject({ label: "Regions", isRequired: false, shape: { kind: "list", item: { kind: "text" } } });
  expect(aws.get("vpc_ids")).toMatchObject({ label: "VPC IDs", about: "VPCs by region.", shape: { kind: "map" } });
  expect(aws.get("public_ips")?.shape).toEqual({ kind: "yes or no" });
  expect(aws.get("os_images")?.shape).toMatchObject({ kind: "group", fields: [{ key: "cpu", shape: { kind: "group" } }, { key: "nvidia" }] });
  const creds = aws.get("creds");
  expect(creds?.isRequired && creds.shape.kind === "variants" && creds.shape.variants.map((variant) => [variant.name, variant.fields.length])).toEqual([["access_key", 4], ["default", 2]]);
  const byDefault = creds?.shape.kind === "variants" ? creds.shape.variants[1]?.fields : [];
  expect(byDefault?.map(({ label, isRequired, shape }) => [label, isRequired, shape.kind])).toEqual([["Role ARN", false, "text"], ["External ID", false, "text"]]);
  expect(fieldsOf("gcp").find((field) => field.key === "preview_features")?.shape).toEqual({ kind: "list", item: { kind: "choice", values: ["g4"] } });
  expect(fieldsOf("kubernetes").find((field) => field.key === "contexts")?.shape).toMatchObject({ kind: "list", item: { kind: "group", short: "name" } });
});

test("what is typed stands at its place, and what is emptied is gone", () => {
  const begin = { type: "aws", creds: { type: "default" } };
  const full = withValue(withValue(begin, ["os_images", "cpu", "name"], "ami"), ["regions", 1], "eu-west-1");
  expect(full).toEqual({ ...begin, os_images: { cpu: { name: "ami" } }, regions: [undefined, "eu-west-1"] });
  expect(withValue(full, ["os_images", "cpu", "name"], undefined)).toEqual({ ...begin, regions: [undefined, "eu-west-1"] });
  expect(Object.keys(withValue(full, ["type"], "gcp"))).toEqual(Object.keys(full));
  expect(begin).toEqual({ type: "aws", creds: { type: "default" } });
});

test("secrets are not shown, and stay as they are where none is typed", () => {
  const fields = fieldsOf("oci");
  const saved = { type: "oci", creds: { type: "client", user: "u", tenancy: "t", fingerprint: "f", region: "r", key_content: "KEY", pass_phrase: "PASS" } };
  const shown = withoutSecrets(fields, saved);
  expect(JSON.stringify(shown)).not.toMatch(/KEY|PASS/);
  expect(complete(fields, shown, saved)).toEqual(saved);
  expect(complete(fields, withValue(shown, ["creds", "key_content"], "NEW"), saved).creds).toMatchObject({ key_content: "NEW", pass_phrase: "PASS" });
  // Taken away on purpose.
  expect(complete(fields, withValue(shown, ["creds", "pass_phrase"], null), saved).creds).not.toHaveProperty("pass_phrase");
  // Of another kind of credentials nothing is kept.
  const other = { type: "oci", creds: { type: "default" } };
  expect(complete(fields, other, saved)).toEqual(other);
  const key = (type: string, api_key?: string) => ({ creds: { type, ...(api_key !== undefined && { api_key }) } });
  expect(keptSecret(key("one", "KEY"), key("one"), ["creds", "api_key"])).toBe("KEY");
  expect(keptSecret(key("one", "KEY"), key("another"), ["creds", "api_key"])).toBeUndefined();
});

test("secrets of items of a list are kept by name", () => {
  const fields = fieldsOf("slurm");
  const cluster = (name: string, content?: string) => ({ name, hostname: "h", user: "u", ...(content && { private_key: { content } }) });
  const saved = { type: "slurm", clusters: [cluster("a", "KEY-A"), cluster("b", "KEY-B")] };
  const shown = withoutSecrets(fields, saved);
  expect(JSON.stringify(shown)).not.toContain("KEY");
  const turned = { type: "slurm", clusters: [cluster("b"), cluster("c")] };
  expect(secretsOf(fields, turned).map(({ path }) => path)).toEqual([["clusters", 0, "private_key", "content"], ["clusters", 1, "private_key", "content"]]);
  expect(keptSecret(saved, turned, ["clusters", 1, "private_key", "content"])).toBeUndefined();
  expect(complete(fields, turned, saved)).toEqual({ type: "slurm", clusters: [cluster("b", "KEY-B"), cluster("c")] });
});

test("a secret that was saved is sent to no other address", () => {
  const fields = fieldsOf("dstack");
  const saved = { type: "dstack", url: "https://one.example", project: "main", creds: { type: "api_token", api_token: "TOKEN" } };
  const shown = withoutSecrets(fields, saved);
  const moved = withValue(shown, ["url"], "https://other.example");
  expect(JSON.stringify(complete(fields, moved, saved))).not.toContain("TOKEN");
  expect(unready(fields, moved, saved)).toEqual([{ text: expect.stringContaining("another address") as string, place: ["creds", "api_token"] }]);
  expect(unready(fields, withValue(moved, ["creds", "api_token"], "NEW"), saved)).toEqual([]);
  // What says nothing of where it goes may change, and so may the address, back to what it was.
  expect(complete(fields, withValue(shown, ["project"], "other"), saved).creds).toEqual(saved.creds);
  expect(complete(fields, withValue(moved, ["url"], saved.url), saved)).toEqual(saved);
  expect(unready(fields, shown, saved)).toEqual([]);

  const path = ["clusters", 0, "private_key", "content"];
  const cluster = { name: "a", hostname: "h", user: "u", private_key: { content: "KEY" } };
  const before = { type: "slurm", clusters: [cluster] };
  const now = withoutSecrets(fieldsOf("slurm"), before);
  for (const [key, value] of [["hostname", "other"], ["port", 2222]] as const) {
    const elsewhere = withValue(now, ["clusters", 0, key], value);
    expect(keptSecret(before, elsewhere, path)).toBeUndefined();
    expect(unready(fieldsOf("slurm"), elsewhere, before).map(({ place }) => place)).toEqual([path]);
  }
  expect(keptSecret(before, withValue(now, ["clusters", 0, "user"], "other"), path)).toBe("KEY");

  // One that is not needed is typed again, too, or taken away.
  const optional = (url: string, api_key?: string | null) => ({ url, ...(api_key !== undefined && { api_key }) });
  expect(isWithheld(optional("a", "KEY"), optional("b"), ["api_key"])).toBe(true);
  expect(isWithheld(optional("a", "KEY"), optional("b", null), ["api_key"])).toBe(false);
  expect(isWithheld(optional("a"), optional("b"), ["api_key"])).toBe(false);
});

test("what is needed is asked for, down to its fields", () => {
  expect(lacking(fieldsOf("aws"), begun(backendType("aws")!)).map(({ place }) => place.join("."))).toEqual(["creds.access_key", "creds.secret_key"]);
  expect(lacking(fieldsOf("aws"), { type: "aws", creds: { type: "default" } })).toEqual([]);
  expect(lacking(fieldsOf("slurm"), { type: "slurm", clusters: [] })).toHaveLength(1);
  expect(lacking(fieldsOf("slurm"), { type: "slurm", clusters: [{ name: "a" }] }).map(({ place }) => place.join("."))).toEqual(["clusters.0.hostname", "clusters.0.user", "clusters.0.private_key.content"]);
  expect(lacking(fieldsOf("kubernetes"), { type: "kubernetes", contexts: ["one"] }).map(({ place }) => place.join("."))).toEqual(["kubeconfig.data"]);
  // Part of what need not be there.
  expect(lacking(fieldsOf("aws"), { type: "aws", creds: { type: "default" }, os_images: { cpu: { name: "x" } } }).map(({ place }) => place.join("."))).toEqual(["os_images.cpu.user"]);
});

test("what the server refuses is said at the field that it means", () => {
  const config = { type: "aws", creds: { type: "access_key" }, regions: [1] };
  const at = (...place: (string | number)[]) => fieldAt(fieldsOf("aws"), config, place);
  expect(at("creds", "access_key")).toEqual(["creds", "access_key"]);
  expect(at("aws", "creds", "access_key", "access_key")).toEqual(["creds", "access_key"]);
  expect(at("aws", "creds", "access_key", "secret_key")).toEqual(["creds", "secret_key"]);
  expect(at("aws", "regions", 0)).toEqual(["regions", 0]);
  expect(at("creds")).toEqual(["creds"]);
  expect(at("aws", "nothing")).toBeNull();
  expect(at()).toBeNull();
  const found = placed(fieldsOf("aws"), config, [{ text: "Away", place: [] }, { text: "Wrong.", place: ["creds", "secret_key"] }, { text: "Too short.", place: ["creds", "secret_key"] }]);
  expect(found).toEqual({ at: new Map([[pathKey(["creds", "secret_key"]), "Wrong. Too short."]]), first: ["creds", "secret_key"], others: [{ text: "Away", place: [] }] });
});

test("a text keeps what was written around its fields, and says what the form says", () => {
  const text = "# of the team\ntype: runpod\nregions: [A, B] # near\nfuture: {x: 1}\ncreds:\n  type: api_key # the usual\n";
  const config = parse(text) as Record<string, unknown>;
  expect(unknownFields(fieldsOf("runpod"), config)).toEqual(["future"]);
  expect(toYaml(config, text)).toBe(text);
  const changed = withValue(withValue(config, ["creds", "api_key"], "k#: y"), ["community_cloud"], true);
  const written = toYaml(changed, text);
  expect(written).toContain("# of the team\n");
  expect(written).toContain("type: api_key # the usual");
  expect(parse(written)).toEqual(changed);
  expect(parse(toYaml(withValue(changed, ["regions"], undefined), written))).toEqual(withValue(changed, ["regions"], undefined));
  expect(parse(toYaml(changed, ""))).toEqual(changed);
  // What is no YAML yet is not written over.
  expect(toYaml(changed, "type: [")).toBe("type: [");
  expect(tidy({ a: null, b: [{ c: null }], d: false })).toEqual({ b: [{}], d: false });
});

test("what a form has changed comes back from its text, however that was written", () => {
  const texts = {
    "names that are no texts": "type: aws\ntags: {2024: x, true: y}\n",
    "an alias": "type: aws\nregions: &r [a, b]\nzones: *r\n",
    "an alias of fields": "type: aws\nos_images:\n  cpu: &image {name: x, user: u}\n  nvidia: *image\n",
    "merged fields": "type: aws\nos_images:\n  cpu: &image {name: x, user: u}\n  nvidia: {<<: *image, owner: o}\n",
  };
  const changes: [string, (string | number)[], unknown][] = [
    ["names that are no texts", ["tags", "2024"], undefined],
    ["names that are no texts", ["tags", "2024"], "z"],
    ["names that are no texts", ["tags", "true"], undefined],
    ["an alias", ["regions"], undefined],
    ["an alias", ["regions", 0], "c"],
    ["an alias", ["zones", 0], "c"],
    ["an alias of fields", ["os_images", "cpu"], undefined],
    ["an alias of fields", ["os_images", "cpu", "name"], "z"],
    ["an alias of fields", ["os_images", "nvidia", "name"], "z"],
    ["merged fields", ["os_images", "nvidia", "name"], "z"],
  ];
  for (const [name, path, value] of changes) {
    const text = texts[name as keyof typeof texts];
    const config = readDraft(text).configuration ?? {};
    const changed = withValue(config, path, value);
    expect(readDraft(toYaml(changed, text)).configuration, `${name}: ${path.join(".")}`).toEqual(changed);
  }
});

test("offers that do not come are asked for less and less often, and then no more", () => {
  const waits = Array.from({ length: 10 }, (_, at) => nextAsk(at + 1));
  expect(waits).toEqual([5000, 10_000, 20_000, 40_000, 60_000, 60_000, 60_000, null, null, null]);
  expect(nextAsk(0)).toBe(5000);
});
