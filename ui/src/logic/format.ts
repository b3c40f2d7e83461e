/** How numbers of the API are shown. */

import type { Offer, Resources } from "../api/types";

/** Gigabytes from mebibytes: `8GB`, `0.5GB`, `1.5TB`. */
export function memory(mebibytes: number): string {
  const gigabytes = mebibytes / 1024;
  return gigabytes >= 1024 ? `${trimmed(gigabytes / 1024)}TB` : `${trimmed(gigabytes)}GB`;
}

/** Bytes: `512 B`, `1.5 MB`, `23.5 GB`. */
export function bytes(count: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${trimmed(value)} ${units[unit]}`;
}

function trimmed(value: number): string {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return String(Number(value.toFixed(digits)));
}

/** What a machine has: `8 CPU · 32GB · A100 80GB ×2 · disk 100GB`. */
export function resources(of: Resources | null | undefined, withDisk = false): string {
  if (!of) return "";
  const parts = [`${of.cpus} CPU${of.cpu_arch === "arm" ? " arm" : ""}`, memory(of.memory_mib)];
  const gpu = of.gpus[0];
  if (gpu) parts.push(`${gpu.name}${gpu.memory_mib > 0 ? ` ${memory(gpu.memory_mib)}` : ""} ×${of.gpus.length}`);
  if (withDisk && of.disk) parts.push(`disk ${memory(of.disk.size_mib)}`);
  return parts.join(" · ");
}

type Bounds = { min?: number | null; max?: number | null } | null | undefined;

/** A range as the configuration language writes it: `2..`, `..8`, `4`, `1..8GB`. */
export function range(of: Bounds, unit = ""): string {
  if (!of) return "";
  const { min = null, max = null } = of;
  if (min === null && max === null) return "";
  if (min === max) return `${min}${unit}`;
  return `${min === null ? "" : `${min}${unit}`}..${max === null ? "" : `${max}${unit}`}`;
}

/** Dollars an hour: `$1.20/h`, `free` for nothing. */
export function price(dollars: number | null | undefined): string {
  if (dollars === null || dollars === undefined) return "";
  if (dollars === 0) return "free";
  return `${money(dollars)}/h`;
}

/** Dollars: `$0`, `$0.0042`, `$12.30`, `$1,234`. */
export function money(dollars: number): string {
  if (dollars === 0) return "$0";
  const digits = dollars < 0.1 ? 4 : dollars < 1000 ? 2 : 0;
  return `$${dollars.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function priceRange(min: number | null | undefined, max: number | null | undefined): string {
  const [low, high] = [min ?? null, max ?? null];
  if (low === null || high === null) return price(low ?? high);
  return low === high ? price(low) : `${money(low)} – ${money(high)}/h`;
}

/** `no quota` from `no_quota`, `On-demand` is left to the caller. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

export function capitalised(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function offerPlace(offer: Offer): string {
  return `${offer.backend} (${offer.region})`;
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString("en-US")} ${number === 1 ? one : many}`;
}
