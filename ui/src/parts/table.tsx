/** Tables. Long ones draw only the rows that are seen; on narrow screens each row is a card. */

import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { MOST_LISTED } from "../api/queries";
import { Button } from "./basic";

export interface Column<T> {
  name: string;
  cell: (row: T) => ReactNode;
  isNumber?: boolean;
  /** Of more than a word or two. */
  isWide?: boolean;
  /** Left out where there is little room. */
  isMinor?: boolean;
}

export interface Selection {
  ids: Set<string>;
  set: (ids: Set<string>) => void;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  idOf: (row: T) => string;
  nameOf?: (row: T) => string;
  selection?: Selection | undefined;
  /** Called when the end comes near. */
  more?: (() => void) | undefined;
}

/** So many rows are drawn as they are. */
const FEW = 60;
const ROW_HEIGHT = 45;

export function Table<T>({ label, columns, rows, idOf, nameOf = idOf, selection, more }: Props<T>) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [top, setTop] = useState(0);
  const isLong = rows.length > FEW;
  useEffect(() => {
    if (body.current) setTop(body.current.getBoundingClientRect().top + window.scrollY);
  }, [isLong]);
  const windowed = useWindowVirtualizer({ count: rows.length, estimateSize: () => ROW_HEIGHT, overscan: 12, scrollMargin: top, enabled: isLong });
  const items = windowed.getVirtualItems();
  const shown = isLong ? items.map((item) => item.index) : rows.map((_, at) => at);
  const before = isLong ? (items[0]?.start ?? top) - top : 0;
  const after = isLong ? Math.max(0, windowed.getTotalSize() - ((items.at(-1)?.end ?? top) - top)) : 0;
  const last = shown.at(-1) ?? 0;
  useEffect(() => {
    if (more && rows.length > 0 && last >= rows.length - 20) more();
  }, [last, rows.length, more]);

  const toggle = (id: string) => {
    if (!selection) return;
    const ids = new Set(selection.ids);
    if (!ids.delete(id)) ids.add(id);
    selection.set(ids);
  };
  const isAll = selection !== undefined && rows.length > 0 && rows.every((row) => selection.ids.has(idOf(row)));
  const width = columns.length + (selection ? 1 : 0);
  return (
    <div className="table-box">
      <table role="table" aria-label={label} aria-rowcount={rows.length + 1}>
        <thead role="rowgroup">
          <tr role="row" aria-rowindex={1}>
            {selection && (
              <th role="columnheader" className="choose">
                <input
                  type="checkbox"
                  aria-label="Select all"
                  checked={isAll}
                  onChange={() => selection.set(isAll ? new Set() : new Set(rows.map(idOf)))}
                />
              </th>
            )}
            {columns.map((column) => (
              <th key={column.name} role="columnheader" scope="col" className={classes(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup" ref={body}>
          {before > 0 && <Gap height={before} width={width} />}
          {shown.map((at) => {
            const row = rows[at];
            if (row === undefined) return null;
            const id = idOf(row);
            return (
              <tr key={id} role="row" aria-rowindex={at + 2} data-index={at} ref={isLong ? windowed.measureElement : undefined} className={selection?.ids.has(id) ? "selected" : undefined}>
                {selection && (
                  <td role="cell" className="choose">
                    <input type="checkbox" aria-label={`Select ${nameOf(row)}`} checked={selection.ids.has(id)} onChange={() => toggle(id)} />
                  </td>
                )}
                {columns.map((column) => (
                  <td key={column.name} role="cell" data-label={column.name} className={classes(column)}>
                    <div className="cell">{column.cell(row)}</div>
                  </td>
                ))}
              </tr>
            );
          })}
          {after > 0 && <Gap height={after} width={width} />}
        </tbody>
      </table>
    </div>
  );
}

/** Below a list of which more could not be read. */
export function ReadAgain({ again }: { again: (() => void) | undefined }) {
  if (again === undefined) return null;
  return (
    <p>
      There is more, which could not be read. <Button onClick={again}>Read on</Button>
    </p>
  );
}

/** Says that a list has an end that the server sets. */
export function Most({ rows, what }: { rows: unknown[] | undefined; what: string }) {
  if (rows === undefined || rows.length < MOST_LISTED) return null;
  return (
    <p className="muted" role="status">
      Of the {what} the newest {MOST_LISTED.toLocaleString("en")} are listed here.
    </p>
  );
}

function Gap({ height, width }: { height: number; width: number }) {
  return (
    <tr aria-hidden="true" className="gap">
      <td colSpan={width} style={{ height }} />
    </tr>
  );
}

function classes<T>(column: Column<T>): string | undefined {
  return [column.isNumber && "number", column.isMinor && "minor", column.isWide && "wide-cell"].filter(Boolean).join(" ") || undefined;
}

/** Ids that are chosen, without those that are not there any more. */
export function useSelection<T>(rows: T[], idOf: (row: T) => string): Selection & { chosen: T[] } {
  const [ids, set] = useState<Set<string>>(new Set());
  const chosen = rows.filter((row) => ids.has(idOf(row)));
  return { ids, set, chosen };
}
