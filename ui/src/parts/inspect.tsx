/** The whole of something, as the API says it. */

import { Copy } from "./basic";

export function Inspect({ value }: { value: unknown }) {
  const text = JSON.stringify(value, null, 2);
  return (
    <div className="inspect">
      <div className="actions">
        <Copy text={text} label="Copy JSON" />
      </div>
      <pre tabIndex={0} aria-label="JSON">
        {text.split("\n").map((line, at) => (
          <JsonLine key={at} line={line} />
        ))}
      </pre>
    </div>
  );
}

function JsonLine({ line }: { line: string }) {
  const [, indent = "", key = "", rest = ""] = /^(\s*)("(?:[^"\\]|\\.)*": )?(.*)$/s.exec(line) ?? [];
  const kind = rest.startsWith('"') ? "string" : /^[-\dtfn]/.test(rest) ? "literal" : "";
  return (
    <>
      {indent}
      <span className="json-key">{key}</span>
      <span className={kind && `json-${kind}`}>{rest}</span>
      {"\n"}
    </>
  );
}
