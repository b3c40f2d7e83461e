/** Dialogs, and what asks before it does something. The browser's own `<dialog>` keeps the focus and knows Escape. */

import { type FormEvent, type MouseEvent, type PointerEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { say } from "../toasts";
import { Button, Code, Failure } from "./basic";

/** Closes a dialog by a click beside it; not by one that began in it, as when text is marked up to beyond its edge. */
export function useOutside(onClose: () => void) {
  const beganOutside = useRef(false);
  return {
    onPointerDown: (event: PointerEvent) => {
      beganOutside.current = event.target === event.currentTarget;
    },
    onClick: (event: MouseEvent) => {
      if (beganOutside.current && event.target === event.currentTarget) onClose();
    },
  };
}

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const outside = useOutside(onClose);
  useEffect(() => {
    const dialog = element.current;
    if (dialog && !dialog.open) dialog.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      {...outside}
    >
      <div className="dialog">
        <h2 id={heading}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface ActionProps {
  /** What the button says. */
  label: string;
  /** What it is about, for who cannot see the row that it stands in. */
  of?: string;
  title?: string;
  /** What is about to happen. */
  children?: ReactNode;
  /** What the button in the dialog says; as the button when unset. */
  confirm?: string;
  kind?: "primary" | "danger";
  disabled?: boolean;
  /** The command line that does the same. */
  cli?: string | undefined;
  /** A word that has to be typed first. */
  typed?: string;
  done?: string;
  act: () => Promise<unknown>;
}

/** A button that asks first, shows the command line that does the same, and says what the server said. */
export function Action({ label, of, title, children, confirm, kind = "danger", disabled, cli, typed, done, act }: ActionProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button disabled={disabled ?? false} aria-label={of && `${label} ${of}`} onClick={() => setOpen(true)}>
        {label}
      </Button>
      {isOpen && (
        <FormDialog title={title ?? `${label}?`} confirm={confirm ?? label} kind={kind} cli={cli} typed={typed} onClose={() => setOpen(false)} submit={act} done={done}>
          {children}
        </FormDialog>
      )}
    </>
  );
}

interface FormProps {
  title: string;
  confirm: string;
  kind?: "primary" | "danger";
  cli?: string | undefined;
  typed?: string | undefined;
  done?: string | undefined;
  onClose: () => void;
  submit: () => Promise<unknown>;
  children?: ReactNode;
}

/** A dialog with fields, which closes once the server has taken them. */
export function FormDialog({ title, confirm, kind = "primary", cli, typed, done, onClose, submit, children }: FormProps) {
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const [word, setWord] = useState("");
  const field = useId();
  const go = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await submit();
      if (done) say(done);
      onClose();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => void go(event)}>
        {children}
        {typed !== undefined && (
          <div className="field">
            <label htmlFor={field}>
              Type <code>{typed}</code> to go on
            </label>
            <input id={field} value={word} onChange={(event) => setWord(event.target.value)} autoComplete="off" />
          </div>
        )}
        {cli !== undefined && (
          <details>
            <summary>The same on the command line</summary>
            <Code text={cli} label="Command line" />
          </details>
        )}
        <Failure error={error} />
        <div className="dialog-buttons">
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind={kind} busy={isBusy} disabled={isBusy || (typed !== undefined && word !== typed)}>
            {confirm}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** The command line for what a page shows. */
export function CliButton({ text }: { text: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button onClick={() => setOpen(true)}>CLI</Button>
      {isOpen && (
        <Dialog title="On the command line" onClose={() => setOpen(false)}>
          <Code text={text} label="Command line" />
          <div className="dialog-buttons">
            <Button onClick={() => setOpen(false)}>Close</Button>
          </div>
        </Dialog>
      )}
    </>
  );
}
