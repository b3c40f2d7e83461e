import { expect, test } from "vitest";
import { bytes, memory, money, price, priceRange, range, resources } from "../src/logic/format";

test("memory is shown in the unit that fits", () => {
  expect([512, 8192, 81920, 24105, 2 * 1024 * 1024].map(memory)).toEqual(["0.5GB", "8GB", "80GB", "23.5GB", "2TB"]);
  expect([0, 1023, 1536, 5 * 1024 ** 3].map(bytes)).toEqual(["0 B", "1023 B", "1.5 KB", "5 GB"]);
});

test("prices keep the cents that matter", () => {
  expect([0, 0.004, 0.5, 12.345, 1234.5].map(money)).toEqual(["$0", "$0.0040", "$0.50", "$12.35", "$1,235"]);
  expect([null, undefined, 0, 2].map(price)).toEqual(["", "", "free", "$2.00/h"]);
  expect(priceRange(1, 2)).toBe("$1.00 – $2.00/h");
  expect(priceRange(1, 1)).toBe("$1.00/h");
  expect(priceRange(null, 3)).toBe("$3.00/h");
});

test("ranges are written as configurations write them", () => {
  expect(range({ min: 2, max: null })).toBe("2..");
  expect(range({ min: null, max: 8 }, "GB")).toBe("..8GB");
  expect(range({ min: 4, max: 4 })).toBe("4");
  expect(range({ min: 0, max: 2 })).toBe("0..2");
  expect(range(null)).toBe("");
});

test("a machine is described in one line", () => {
  const gpu = { name: "A100", memory_mib: 81920, vendor: "nvidia" as const };
  const machine = { cpus: 8, memory_mib: 32768, gpus: [gpu, gpu], spot: false, disk: { size_mib: 102400 }, cpu_arch: "arm" as const, description: "" };
  expect(resources(machine, true)).toBe("8 CPU arm · 32GB · A100 80GB ×2 · disk 100GB");
  expect(resources(null)).toBe("");
});
