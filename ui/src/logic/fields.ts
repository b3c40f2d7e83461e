/** Fields of a form, made from a schema of the API's document. */

/** What is used of a JSON Schema. */
export interface Schema {
  $ref?: string;
  type?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  discriminator?: { propertyName: string; mapping: Record<string, string> };
  enum?: unknown[];
  const?: unknown;
  description?: string;
}

export interface Field {
  key: string;
  label: string;
  about: string;
  isRequired: boolean;
  shape: Shape;
}

/** One of several forms that an object may have, told apart by its `type`. */
export interface Variant {
  name: string;
  about: string;
  fields: Field[];
}

export type Shape =
  | { kind: "text" }
  /** Not shown once it is saved. Long ones have lines. */
  | { kind: "secret"; isLong: boolean }
  | { kind: "number" }
  | { kind: "yes or no" }
  | { kind: "choice"; values: string[] }
  | { kind: "list"; item: Shape }
  /** Texts by name. */
  | { kind: "map" }
  /** `short` is the field that a bare text stands for. */
  | { kind: "group"; fields: Field[]; short: string | null }
  | { kind: "variants"; variants: Variant[] };

/** Fields that have a secret, by name: the schema does not tell. */
const SECRETS = new Set(["api_key", "api_token", "secret_key", "client_secret", "pass_phrase"]);
/** Of these, whole files are pasted. */
const LONG_SECRETS = new Set(["data", "content", "private_key_content", "key_content"]);

const WORDS: Record<string, string> = {
  api: "API", arn: "ARN", creds: "credentials", iam: "IAM", id: "ID", ids: "IDs", ips: "IPs", nat: "NAT", os: "OS", roce: "RoCE", tpu: "TPU", gpu: "GPU", cpu: "CPU", url: "URL", vm: "VM", vpc: "VPC", vpcs: "VPCs", nvidia: "NVIDIA",
};

/** `VPC IDs` from `vpc_ids`. */
export function labelOf(key: string): string {
  const words = key.split("_").map((word) => WORDS[word] ?? word);
  const text = words.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Reads schemas of one document. */
export class Reader {
  constructor(private readonly schemas: Record<string, Schema>) {}

  resolved(schema: Schema): Schema {
    if (schema.$ref === undefined) return schema;
    return this.schemas[schema.$ref.split("/").at(-1) ?? ""] ?? {};
  }

  /** The fields of an object, but for the one that says of which type it is. */
  fields(schema: Schema): Field[] {
    const required = schema.required ?? [];
    return Object.entries(schema.properties ?? {})
      .filter(([key, property]) => !(key === "type" && property.const !== undefined))
      .map(([key, property]) => ({ key, label: labelOf(key), about: property.description ?? "", isRequired: required.includes(key), shape: this.shape(property, key) }));
  }

  private shape(given: Schema, key: string): Shape {
    const schema = this.resolved(given);
    const { discriminator } = schema;
    if (discriminator) {
      const variants = Object.entries(discriminator.mapping).map(([name, $ref]) => this.variant(name, this.resolved({ $ref })));
      return { kind: "variants", variants };
    }
    const choices = (schema.anyOf ?? schema.oneOf ?? []).filter((choice) => choice.type !== "null").map((choice) => this.resolved(choice));
    if (choices.length > 0) return this.choice(choices, key);
    switch (schema.type) {
      case "boolean":
        return { kind: "yes or no" };
      case "integer":
      case "number":
        return { kind: "number" };
      case "array":
        return { kind: "list", item: this.shape(schema.items ?? {}, key) };
      case "object":
        return this.object(schema);
      default:
        return text(schema, key);
    }
  }

  private choice(choices: Schema[], key: string): Shape {
    const object = choices.find((choice) => choice.type === "object" && choice.properties);
    const [first = {}] = choices;
    if (choices.length === 1) return this.shape(first, key);
    // An object, or the text that its first field is.
    if (object) return { kind: "group", fields: this.fields(object), short: object.required?.[0] ?? null };
    return text(first, key);
  }

  private object(schema: Schema): Shape {
    if (!schema.properties) return { kind: "map" };
    const tag = schema.properties["type"]?.const;
    if (typeof tag === "string") return { kind: "variants", variants: [this.variant(tag, schema)] };
    return { kind: "group", fields: this.fields(schema), short: null };
  }

  private variant(name: string, schema: Schema): Variant {
    return { name, about: schema.description ?? "", fields: this.fields(schema) };
  }
}

function text(schema: Schema, key: string): Shape {
  const values = schema.enum ?? (schema.const === undefined ? undefined : [schema.const]);
  if (values) return { kind: "choice", values: values.map(String) };
  if (LONG_SECRETS.has(key)) return { kind: "secret", isLong: true };
  return SECRETS.has(key) ? { kind: "secret", isLong: false } : { kind: "text" };
}
