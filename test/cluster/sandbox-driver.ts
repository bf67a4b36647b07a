/**
 * The sandbox backend on a node, driven line by line: one JSON call per line of stdin, one JSON answer per line of
 * stdout, in the order in which they end. Bytes travel as base64.
 */
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { XceError } from '../../src/base/errors.ts';
import type { Settings } from '../../src/config/settings.ts';
import type { Resources } from '../../src/rpc/message.ts';
import type { RunningStep, SandboxSpec } from '../../src/sandbox/backend.ts';
import { DEFAULT_RESOURCES } from '../../src/sandbox/resources.ts';
import { createSystemdBackend } from '../../src/sandbox/systemd/backend.ts';

export type StepRequest = {
  readonly step: string;
  readonly argv: readonly string[];
  readonly environment?: readonly string[];
  readonly directory?: string;
};

/** What tests may call, with the answers as they come over the line. */
export type Calls = {
  checkHost: { in: []; out: null };
  create: {
    in: [SandboxSpec, number, Partial<Resources>?];
    out: Awaited<ReturnType<ReturnType<typeof createSystemdBackend>['create']>>;
  };
  armDeadline: { in: [SandboxSpec, number]; out: null };
  destroy: { in: [SandboxSpec]; out: null };
  scan: { in: [SandboxSpec]; out: readonly { kind: string; detail: string }[] };
  isAlive: { in: [SandboxSpec, string]; out: boolean };
  watchEnd: { in: [SandboxSpec, string]; out: null };
  stopSteps: { in: [SandboxSpec]; out: null };
  /** Starts a step; its unit and the milliseconds it took. */
  start: { in: [SandboxSpec, string, StepRequest]; out: { unit: string; ms: number } };
  /** Writes to a step's input and ends it when `end`. */
  write: { in: [string, string, boolean]; out: null };
  signal: { in: [string, number]; out: null };
  stop: { in: [string]; out: null };
  /** Waits for a step; result, output, milliseconds since its start was asked for. */
  end: { in: [string]; out: { result: unknown; stdout: string; stderr: string; ms: number } };
  /** CPU time in microseconds and voluntary context switches of this process so far. */
  usage: { in: []; out: { cpuUs: number; switches: number; rssBytes: number } };
};

type Held = {
  readonly running: RunningStep;
  readonly stdout: Promise<Buffer>;
  readonly stderr: Promise<Buffer>;
  readonly startedNs: bigint;
};

const readAll = async (stream: Readable): Promise<Buffer> => {
  const parts: Buffer[] = [];
  for await (const part of stream) parts.push(part as Buffer);
  return Buffer.concat(parts);
};

const fromBase64 = (text: string): Buffer => Buffer.from(text, 'base64');
const msSince = (ns: bigint): number => Number(process.hrtime.bigint() - ns) / 1e6;

const settings = JSON.parse(process.argv[2] ?? '{}') as Settings;
const backend = createSystemdBackend(settings);
const steps = new Map<string, Held>();

const held = (step: string): Held => {
  const found = steps.get(step);
  if (found === undefined) throw new Error(`no step ${step}`);
  return found;
};

const handlers: {
  [Name in keyof Calls]: (...input: Calls[Name]['in']) => Promise<Calls[Name]['out'] | undefined>;
} = {
  checkHost: async () => {
    await backend.checkHost();
    return null;
  },
  create: (spec, ms, asked) => backend.create(spec, { ...DEFAULT_RESOURCES, ...asked }, ms),
  armDeadline: async (spec, ms) => {
    await backend.armDeadline(spec, ms);
    return null;
  },
  destroy: async (spec) => {
    await backend.destroy(spec);
    return null;
  },
  scan: async (spec) => [...(await backend.scan(spec))],
  isAlive: (spec, id) => backend.isAlive(spec, id),
  watchEnd: async (spec, id) => {
    await backend.watchEnd(spec, id, new AbortController().signal);
    return null;
  },
  stopSteps: async (spec) => {
    await backend.stopSteps(spec);
    return null;
  },
  start: async (spec, id, request) => {
    const startedNs = process.hrtime.bigint();
    const running = await backend.startStep(spec, id, {
      step: request.step,
      argv: request.argv.map(fromBase64),
      environment: (request.environment ?? []).map(fromBase64),
      directory: request.directory === undefined ? null : fromBase64(request.directory),
    });
    steps.set(request.step, {
      running,
      stdout: readAll(running.stdout),
      stderr: readAll(running.stderr),
      startedNs,
    });
    return { unit: running.unit, ms: msSince(startedNs) };
  },
  write: async (step, bytes, end) => {
    const { stdin } = held(step).running;
    if (end) stdin.end(fromBase64(bytes));
    else stdin.write(fromBase64(bytes));
    return null;
  },
  signal: async (step, signal) => {
    await held(step).running.signal(signal);
    return null;
  },
  stop: async (step) => {
    await held(step).running.stop();
    return null;
  },
  end: async (step) => {
    const { running, stdout, stderr, startedNs } = held(step);
    const result = await running.ended;
    const [out, err] = await Promise.all([stdout, stderr]);
    steps.delete(step);
    return { result, stdout: out.toString('base64'), stderr: err.toString('base64'), ms: msSince(startedNs) };
  },
  usage: async () => {
    const { userCPUTime, systemCPUTime, voluntaryContextSwitches } = process.resourceUsage();
    return {
      cpuUs: userCPUTime + systemCPUTime,
      switches: voluntaryContextSwitches,
      rssBytes: process.memoryUsage.rss(),
    };
  },
};

type Line = { readonly id: number; readonly call: keyof Calls; readonly input: readonly unknown[] };

const answer = async (line: Line): Promise<object> => {
  try {
    const handler = handlers[line.call] as (...input: readonly unknown[]) => Promise<unknown>;
    return { id: line.id, value: await handler(...line.input) };
  } catch (error) {
    const code = error instanceof XceError ? error.code : 'none';
    return { id: line.id, code, message: error instanceof Error ? error.message : String(error) };
  }
};

for await (const text of createInterface({ input: process.stdin })) {
  const line = JSON.parse(text) as Line;
  void answer(line).then((result) => {
    process.stdout.write(`${JSON.stringify(result)}\n`);
  });
}
process.exit(0);
