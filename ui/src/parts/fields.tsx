/** The fields of a form that is made from a schema. */

import { type ReactNode, useId, useRef, useState } from "react";
import { type Config, fieldsOf, isWithheld, keptSecret, type Path, pathKey, valueAt, withValue } from "../logic/config";
import { type Field as FieldSpec, labelOf, type Shape, type Variant } from "../logic/fields";
import { words } from "../logic/format";
import { Button, Coded } from "./basic";

/** What all fields of a form share. */
export interface Form {
  config: Config;
  /** With a function where it may have changed since it was shown. */
  change: (config: Config | ((now: Config) => Config)) => void;
  /** What was saved, with its secrets. */
  before: Config | undefined;
  /** What is wrong, by the path of the field. */
  errors: Map<string, string>;
}

interface Props {
  form: Form;
  field: FieldSpec;
  path: Path;
}

/** Puts the cursor into the field of this path, or the first one in it. */
export function focusField(form: HTMLElement | null, path: Path): void {
  const all = [...(form?.querySelectorAll<HTMLElement>("[data-path]") ?? [])];
  const own = all.find((each) => each.dataset["path"] === pathKey(path));
  const target = own?.matches("input, select, textarea, button") ? own : own?.querySelector<HTMLElement>("input, select, textarea, button");
  target?.focus();
}

const SIMPLE = ["text", "secret", "number", "yes or no", "choice"];

export function FormFields({ form, fields, path }: { form: Form; fields: FieldSpec[]; path: Path }) {
  return fields.map((field) => <OneField key={field.key} form={form} field={field} path={[...path, field.key]} />);
}

export function OneField({ form, field, path }: Props) {
  const { shape } = field;
  if (SIMPLE.includes(shape.kind)) {
    return (
      <Labelled form={form} field={field} path={path}>
        {(props) => <Input form={form} shape={shape} path={path} isRequired={field.isRequired} {...props} />}
      </Labelled>
    );
  }
  return (
    <Group form={form} field={field} path={path}>
      <Inner form={form} shape={shape} path={path} label={field.label} isNeeded={field.isRequired} />
    </Group>
  );
}

function About({ text }: { text: string }) {
  return (
    <p className="hint">
      <Coded text={text} />
    </p>
  );
}

interface InputProps {
  id: string;
  "data-path": string;
  "aria-describedby"?: string;
  "aria-invalid"?: true;
  "aria-required"?: true;
}

function Labelled({ form, field, path, children }: Props & { children: (props: InputProps) => ReactNode }) {
  const id = useId();
  const key = pathKey(path);
  const error = form.errors.get(key);
  const described = error || field.about ? { "aria-describedby": `${id}-more` } : {};
  return (
    <div className="field">
      <label htmlFor={id}>
        {field.label}
        {field.isRequired && <Needed />}
      </label>
      {children({ id, "data-path": key, ...described, ...(error && { "aria-invalid": true as const }), ...(field.isRequired && { "aria-required": true as const }) })}
      {(error || field.about) && (
        <div id={`${id}-more`}>
          {error && <p className="field-error">{error}</p>}
          {field.about && <About text={field.about} />}
        </div>
      )}
    </div>
  );
}

function Needed() {
  return (
    <span className="needed" aria-hidden="true">
      {" "}
      *
    </span>
  );
}

function Group({ form, field, path, children }: Props & { children: ReactNode }) {
  const key = pathKey(path);
  const error = form.errors.get(key);
  const id = useId();
  return (
    <fieldset data-path={key} aria-describedby={error || field.about ? id : undefined}>
      <legend>
        {field.label}
        {field.isRequired && <Needed />}
      </legend>
      {(error || field.about) && (
        <div id={id} className="group-about">
          {error && <p className="field-error">{error}</p>}
          {field.about && <About text={field.about} />}
        </div>
      )}
      {children}
    </fieldset>
  );
}

type OfShape<K extends Shape["kind"]> = Extract<Shape, { kind: K }>;

function Inner({ form, shape, path, label, isNeeded }: { form: Form; shape: Shape; path: Path; label: string; isNeeded: boolean }) {
  switch (shape.kind) {
    case "variants":
      return <Variants form={form} shape={shape} path={path} label={label} />;
    case "group": {
      // Of what need not be there, nothing is needed until something of it is there.
      const isUsed = isNeeded || valueAt(form.config, path) !== undefined;
      return <FormFields form={form} fields={isUsed ? shape.fields : shape.fields.map((field) => ({ ...field, isRequired: false }))} path={path} />;
    }
    case "list":
      return <List form={form} shape={shape} path={path} label={label} />;
    case "map":
      return <Pairs form={form} path={path} label={label} />;
    default:
      return null;
  }
}

const KINDS: Record<string, string> = { default: "The server's own", client: "Client", access_key: "Access key", api_key: "API key", api_token: "API token", service_account: "Service account" };
const kindName = (variant: Variant) => KINDS[variant.name] ?? words(variant.name);

function Variants({ form, shape, path, label }: { form: Form; shape: OfShape<"variants">; path: Path; label: string }) {
  const value = valueAt(form.config, path);
  const fields = fieldsOf(shape, value);
  const chosen = valueAt(value, ["type"]);
  const about = shape.variants.find((variant) => variant.name === chosen)?.about;
  const name = useId();
  /** What each kind said when another was chosen. */
  const left = useRef(new Map<unknown, unknown>());
  const choose = (variant: Variant) => {
    left.current.set(chosen, value);
    form.change(withValue(form.config, path, left.current.get(variant.name) ?? { type: variant.name }));
  };
  return (
    <>
      {shape.variants.length > 1 && (
        <div className="choices" role="radiogroup" aria-label={`Kind of ${label.toLowerCase()}`}>
          {shape.variants.map((variant) => (
            <label key={variant.name} className="toggle">
              <input type="radio" name={name} checked={variant.name === chosen} onChange={() => choose(variant)} />
              <span>{kindName(variant)}</span>
            </label>
          ))}
        </div>
      )}
      {fields.length === 0 && about && <p className="muted">{about}</p>}
      <FormFields form={form} fields={fields} path={path} />
    </>
  );
}

/** Items of a list: texts on a line each, or groups of fields. */
function List({ form, shape, path, label }: { form: Form; shape: OfShape<"list">; path: Path; label: string }) {
  const value = valueAt(form.config, path);
  const one = singular(label);
  const id = useId();
  const add = useRef<HTMLButtonElement>(null);
  if (value !== undefined && !Array.isArray(value)) return <p className="field-error">This is no list: edit it as YAML.</p>;
  const items = (value ?? []) as unknown[];
  const put = (next: unknown[]) => form.change(withValue(form.config, path, next.length === 0 ? undefined : next));
  const { item } = shape;
  const removeAt = (at: number) => {
    put(items.filter((_, other) => other !== at));
    // The button that was pressed may be gone.
    add.current?.focus();
  };
  const isSimple = SIMPLE.includes(item.kind);
  return (
    <>
      {items.map((each, at) => {
        const own = [...path, at];
        const remove = <Button kind="plain" aria-label={`Remove ${one} ${at + 1}`} onClick={() => removeAt(at)}>Remove</Button>;
        if (isSimple) {
          const error = form.errors.get(pathKey(own));
          return (
            <div key={at} className="item">
              <Input form={form} shape={item} path={own} isRequired aria-label={`${one} ${at + 1}`} data-path={pathKey(own)} {...faulty(error, `${id}-${at}`)} />
              {remove}
              {error && <p id={`${id}-${at}`} className="field-error">{error}</p>}
            </div>
          );
        }
        const error = form.errors.get(pathKey(own));
        return (
          <fieldset key={at} className="part" data-path={pathKey(own)} aria-describedby={error && `${id}-${at}`}>
            <legend>
              {one} {at + 1}
            </legend>
            {error && <p id={`${id}-${at}`} className="field-error">{error}</p>}
            {item.kind === "group" && item.short !== null && typeof each === "string" ? (
              <FormFields form={{ ...form, config: withValue(form.config, own, { [item.short]: each }) }} fields={item.fields} path={own} />
            ) : (
              <Inner form={form} shape={item} path={own} label={one} isNeeded />
            )}
            {remove}
          </fieldset>
        );
      })}
      <Button ref={add} aria-label={`Add ${one.toLowerCase()}`} onClick={() => put([...items, isSimple ? firstOf(item) : {}])}>
        Add
      </Button>
    </>
  );
}

/** What a field has that something is wrong with, which is said there. */
function faulty(error: string | undefined, saidAt: string) {
  return error ? { "aria-invalid": true as const, "aria-describedby": saidAt } : {};
}

/** What a new item of a list begins with. */
function firstOf(shape: Shape): string {
  return shape.kind === "choice" ? (shape.values[0] ?? "") : "";
}

function singular(label: string): string {
  return label.replace(/ies$/, "y").replace(/([^s])s$/, "$1");
}

/** Texts by name. */
function Pairs({ form, path, label }: { form: Form; path: Path; label: string }) {
  const value = valueAt(form.config, path);
  const [name, setName] = useState("");
  const id = useId();
  const place = useRef<HTMLInputElement>(null);
  if (value !== undefined && (typeof value !== "object" || Array.isArray(value))) return <p className="field-error">These are no names with values: edit them as YAML.</p>;
  const pairs = Object.entries((value ?? {}) as Record<string, unknown>);
  const remove = (own: Path) => {
    form.change(withValue(form.config, own, undefined));
    place.current?.focus();
  };
  const add = () => {
    if (name.trim() === "") return;
    form.change(withValue(form.config, [...path, name.trim()], ""));
    setName("");
  };
  return (
    <>
      {pairs.map(([key, each], at) => {
        const own = [...path, key];
        const error = form.errors.get(pathKey(own));
        return (
          <div key={key} className="item">
            <code>{key}</code>
            <input aria-label={`${label} of ${key}`} data-path={pathKey(own)} value={String(each ?? "")} autoComplete="off" onChange={(event) => form.change(withValue(form.config, own, event.target.value))} {...faulty(error, `${id}-${at}`)} />
            <Button kind="plain" aria-label={`Remove ${key}`} onClick={() => remove(own)}>
              Remove
            </Button>
            {error && <p id={`${id}-${at}`} className="field-error">{error}</p>}
          </div>
        );
      })}
      <div className="item">
        <input
          ref={place}
          aria-label={`Name for ${label}`}
          placeholder="Name"
          value={name}
          autoComplete="off"
          onChange={(event) => setName(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            add();
          }}
        />
        <Button disabled={name.trim() === "" || pairs.some(([key]) => key === name.trim())} onClick={add}>
          Add
        </Button>
      </div>
    </>
  );
}

type Inputs = Partial<InputProps> & { form: Form; shape: Shape; path: Path; isRequired: boolean; "aria-label"?: string };

function Input({ form, shape, path, isRequired, ...props }: Inputs) {
  const value = valueAt(form.config, path);
  // Items of lists stay, also while nothing stands in them.
  const isItem = typeof path.at(-1) === "number";
  const set = (next: unknown) => form.change(withValue(form.config, path, next === "" && !isItem ? undefined : next));
  switch (shape.kind) {
    case "secret":
      return <SecretInput form={form} isLong={shape.isLong} path={path} isRequired={isRequired} set={set} {...props} />;
    case "yes or no":
      return (
        <select {...props} value={shownAs(value)} onChange={(event) => set(event.target.value === "" ? undefined : event.target.value === "true")}>
          <option value="">Not set</option>
          <option value="true">Yes</option>
          <option value="false">No</option>
          <Unknown value={value} known={["true", "false"]} />
        </select>
      );
    case "choice":
      return (
        <select {...props} value={shownAs(value)} onChange={(event) => set(event.target.value)}>
          {!isItem && <option value="">Not set</option>}
          {shape.values.map((each) => (
            <option key={each}>{each}</option>
          ))}
          <Unknown value={value} known={shape.values} />
        </select>
      );
    case "number":
      return <input {...props} inputMode="numeric" value={String(value ?? "")} autoComplete="off" onChange={(event) => set(/^\d+$/.test(event.target.value) ? Number(event.target.value) : event.target.value)} />;
    default:
      return <input {...props} value={shownAs(value)} autoComplete="off" spellCheck={false} onChange={(event) => set(event.target.value)} />;
  }
}

function shownAs(value: unknown): string {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "");
}

/** What a choice is now, where it is none of those that are known: it is sent as it is. */
function Unknown({ value, known }: { value: unknown; known: string[] }) {
  const text = shownAs(value);
  return text === "" || known.includes(text) ? null : <option value={text}>{text} (not known here)</option>;
}

/** A secret is typed, and never shown again. One that was saved stays while nothing is typed. */
function SecretInput({ form, isLong, path, isRequired, set, ...props }: Omit<Inputs, "shape"> & { isLong: boolean; set: (value: unknown) => void }) {
  const value = valueAt(form.config, path);
  const isKept = keptSecret(form.before, form.config, path) !== undefined;
  const isNotSent = isWithheld(form.before, form.config, path);
  const isTakenAway = value === null;
  const shown = {
    ...props,
    value: typeof value === "string" ? value : "",
    placeholder: isKept ? "Saved, and stays as it is" : isNotSent ? "For the new address, type it again" : isTakenAway ? "Is taken away" : undefined,
    autoComplete: "new-password",
    spellCheck: false,
  };
  const name = labelOf(String(path.at(-1))).toLowerCase();
  const [failed, setFailed] = useState<string | null>(null);
  const read = async (file: File | undefined) => {
    setFailed(null);
    if (!file) return;
    try {
      const text = await file.text();
      // Something else may have been typed meanwhile.
      form.change((now) => withValue(now, path, text));
    } catch (error) {
      setFailed(`${file.name} could not be read: ${error instanceof Error ? error.message : String(error)}`);
    }
  };
  return (
    <>
      {isLong ? <textarea {...shown} className="secret" rows={3} onChange={(event) => set(event.target.value)} /> : <input {...shown} type="password" onChange={(event) => set(event.target.value)} />}
      {isLong && (
        <label className="from-file">
          <span className="hint">From a file of this machine:</span> <input type="file" aria-label={`File with ${name}`} onChange={(event) => void read(event.target.files?.[0])} />
        </label>
      )}
      {failed !== null && <p role="alert" className="field-error">{failed}</p>}
      {/* One button for both: it keeps the focus. */}
      {(isTakenAway || (!isRequired && (isKept || isNotSent))) && (
        <Button kind="plain" className="take-away" onClick={() => set(isTakenAway ? undefined : null)}>
          {isTakenAway ? "Keep" : "Take away"} the saved {name}
        </Button>
      )}
    </>
  );
}
