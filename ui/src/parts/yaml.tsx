/**
 * An editor of YAML. It stands in a shadow root: there its styles are constructed style sheets, which the page's content
 * policy lets through, as it lets no style elements.
 */

import { autocompletion, type CompletionContext, type CompletionResult, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { searchKeymap } from "@codemirror/search";
import { Compartment, EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";
import { fields, pathAt, type Schema, typeOf, values } from "../logic/completion";

export interface Mark {
  from: number;
  to: number;
  text: string;
}

interface Props {
  /** Where it starts from. For another start, give it another key. */
  text: string;
  label: string;
  onChange: (text: string) => void;
  /** What may stand in it. */
  schema?: Schema | undefined;
  marks?: Mark[];
  isReadOnly?: boolean;
}

const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--text)" },
  { tag: [tags.number, tags.bool, tags.keyword], color: "var(--good)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" },
]);

const LOOK = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--surface)", fontSize: "14px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", minHeight: "22rem" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { color: "var(--muted)", backgroundColor: "var(--sunken)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selected)" },
  ".cm-tooltip": { color: "var(--text)", backgroundColor: "var(--surface)", border: "1px solid var(--border)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { color: "var(--on-accent)", backgroundColor: "var(--accent)" },
  ".cm-completionDetail": { color: "inherit", opacity: "0.85", fontStyle: "normal", marginLeft: "1em" },
  // Its own wave is a picture in the style sheet, which the content policy stops.
  ".cm-lintRange-error": { backgroundImage: "none", textDecoration: "underline wavy var(--bad)" },
  ".cm-panels": { color: "var(--text)", backgroundColor: "var(--sunken)" },
});

export default function Yaml({ text, label, onChange, schema, marks, isReadOnly = false }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>(null);
  const change = useRef(onChange);
  const known = useRef(schema);
  const writing = useRef(new Compartment());
  change.current = onChange;
  known.current = schema;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const root = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    const complete = (context: CompletionContext) => completions(context, known.current);
    const made = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: text,
        extensions: [
          lineNumbers(),
          history(),
          indentUnit.of("  "),
          indentOnInput(),
          bracketMatching(),
          highlightActiveLine(),
          yaml(),
          syntaxHighlighting(COLOURS),
          autocompletion({ override: [complete] }),
          // Tab leaves the editor, as everywhere on the page.
          keymap.of([...completionKeymap, ...searchKeymap, ...historyKeymap, ...defaultKeymap]),
          EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", spellcheck: "false", autocapitalize: "off" }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) change.current(update.state.doc.toString());
          }),
          writing.current.of(EditorState.readOnly.of(isReadOnly)),
          LOOK,
        ],
      }),
    });
    view.current = made;
    return () => {
      made.destroy();
      view.current = null;
    };
    // The text is where it starts from: what was rendered may be older than what the reader has typed since.
  }, [label]);

  useEffect(() => {
    const editor = view.current;
    if (!editor || !marks) return;
    const end = editor.state.doc.length;
    const found: Diagnostic[] = marks.map((mark) => ({ from: Math.min(mark.from, end), to: Math.min(mark.to, end), severity: "error", message: mark.text }));
    editor.dispatch(setDiagnostics(editor.state, found));
  }, [marks]);

  useEffect(() => {
    view.current?.dispatch({ effects: writing.current.reconfigure(EditorState.readOnly.of(isReadOnly)) });
  }, [isReadOnly]);
  return <div className="editor" ref={place} />;
}

function completions(context: CompletionContext, schema: Schema | undefined): CompletionResult | null {
  if (!schema) return null;
  const line = context.state.doc.lineAt(context.pos);
  const before = line.text.slice(0, context.pos - line.from);
  const text = context.state.doc.toString();
  const lines = text.split("\n");
  const key = /^(\s*(?:- )?)([\w-]*)$/.exec(before);
  if (key) {
    const indent = (key[1] ?? "").length;
    if (!context.explicit && key[2] === "") return null;
    const options = fields(schema, pathAt(lines, line.number - 1, indent), typeOf(text));
    return { from: context.pos - (key[2] ?? "").length, options: options.map(({ name, about }) => ({ label: name, detail: short(about), apply: `${name}: `, type: "property" })) };
  }
  const value = /^(\s*(?:- )?)([\w-]+):\s+([\w.-]*)$/.exec(before);
  if (value) {
    const path = [...pathAt(lines, line.number - 1, (value[1] ?? "").length), value[2] ?? ""];
    return { from: context.pos - (value[3] ?? "").length, options: values(schema, path, typeOf(text)).map(({ name }) => ({ label: name, type: "enum" })) };
  }
  return null;
}

function short(text: string): string {
  const sentence = text.split(/(?<=\.)\s/)[0] ?? "";
  return sentence.length > 70 ? `${sentence.slice(0, 69)}…` : sentence;
}
