/**
 * One step: `systemd-run --pipe --wait` as a child whose standard streams are the step's own (systemd passes the
 * descriptors on; no byte goes through the child). The unit's hooks write how it ended.
 */
import { randomBytes } from 'node:crypto';
import type { Readable } from 'node:stream';
import { XceError } from '../../base/errors.ts';
import { escapeBytes } from '../../base/escape.ts';
import type { Settings } from '../../config/settings.ts';
import { type PipedChild, spawnPiped } from '../../os/piped-child.ts';
import { createFile, kindOf, readFileIfThere, removeFile } from '../../os/root-files.ts';
import type { StepResult } from '../../rpc/message.ts';
import type { RunningStep, SandboxSpec, StepSpec } from '../backend.ts';
import type { BoxPaths } from '../box.ts';
import { workspacePath } from '../names.ts';
import { resultFile, stepArguments, stoppedFile } from '../properties.ts';
import { encodeStepInput } from '../step-input.ts';
import { describeResult, LOST, parseUnitRecord, RECORD_BYTES_MAX, type UnitRecord } from '../step-result.ts';
import { HOME_DIRECTORY } from '../user-record.ts';
import { SYSTEMD_RUN, showUnit, signalMain, stopUnits } from './manager.ts';
import { isAnchorAlive, isBoxAlive, placeOf, unitFacts } from './sandbox.ts';

/** From the request to systemd until the step's own program is about to run; systemd itself gives up at 60 s. */
const START_TIMEOUT_MS = 75_000;
const STOP_MARGIN_MS = 20_000;
/** What systemd-run or bash may say before a step starts. */
const COMPLAINT_BYTES_MAX = 8192;

type Start =
  | { readonly kind: 'started'; readonly invocationId: string }
  | { readonly kind: 'ended'; readonly complaint: Buffer };

/**
 * Reads stderr up to the start line, which the step's wrapper writes before it becomes the step; what follows
 * stays in the stream. The end of the stream before it means that the step never began.
 */
const awaitStart = (stderr: Readable, startLine: string): Promise<Start> =>
  new Promise((resolve) => {
    const prefix = Buffer.from(`${startLine} `);
    let seen = Buffer.alloc(0);
    const finish = (start: Start): void => {
      stderr.off('readable', read);
      stderr.off('end', end);
      stderr.off('error', end);
      resolve(start);
    };
    const end = (): void => finish({ kind: 'ended', complaint: seen });
    const read = (): void => {
      for (;;) {
        const chunk: unknown = stderr.read();
        if (!Buffer.isBuffer(chunk)) return;
        seen = Buffer.concat([seen, chunk]);
        const from = seen.indexOf(prefix);
        const newline = from === -1 ? -1 : seen.indexOf(0x0a, from);
        if (newline !== -1) {
          const rest = seen.subarray(newline + 1);
          finish({
            kind: 'started',
            invocationId: seen.toString('latin1', from + prefix.length, newline),
          });
          if (rest.length > 0) stderr.unshift(rest);
          return;
        }
        if (seen.length > COMPLAINT_BYTES_MAX) {
          end();
          return;
        }
      }
    };
    stderr.on('readable', read);
    stderr.once('end', end);
    stderr.once('error', end);
  });

/** Reads the last words of a unit and removes them. `run` names this one run of the step. */
const takeRecord = (box: BoxPaths, run: string): UnitRecord | undefined => {
  const bytes = readFileIfThere(resultFile(box, run), RECORD_BYTES_MAX);
  if (bytes === undefined) return undefined;
  const record = parseUnitRecord(bytes, kindOf(stoppedFile(box, run)) !== 'none');
  removeFile(resultFile(box, run));
  removeFile(stoppedFile(box, run));
  return record;
};

/** Why a step never began, as the error of startStep. */
const explainStart = async (
  settings: Settings,
  spec: SandboxSpec,
  invocationId: string,
  run: string,
  complaint: Buffer,
): Promise<XceError> => {
  const { names, box } = placeOf(settings, spec);
  const record = takeRecord(box, run);
  if (!isBoxAlive(box, invocationId) || !(await isAnchorAlive(names, invocationId))) {
    return new XceError('sandbox-lost', `the sandbox of lease ${spec.lease} ended before the step began`);
  }
  const text = escapeBytes(complaint.subarray(0, 500)).replaceAll('\\n', ' ').trim();
  const outcome = record === undefined ? 'no record' : describeResult(record.result);
  return new XceError('systemd', `the step did not start: ${text === '' ? outcome : text} (${outcome})`);
};

/** The outcome once systemd-run is gone. */
const settle = async (
  settings: Settings,
  spec: SandboxSpec,
  unit: string,
  run: string,
  invocationId: string,
): Promise<StepResult> => {
  const { box } = placeOf(settings, spec);
  let record = takeRecord(box, run);
  if (record === undefined) {
    // systemd-run was killed, or lost the bus: the unit may run on, and nobody reads its output any more.
    const state = await showUnit(unit);
    if (state.activeState !== 'inactive' && state.activeState !== 'failed') {
      await stopUnits([unit], settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS);
    }
    record = takeRecord(box, run);
  }
  return record?.invocationId === invocationId ? record.result : LOST;
};

export const startSandboxStep = async (
  settings: Settings,
  spec: SandboxSpec,
  invocationId: string,
  step: StepSpec,
): Promise<RunningStep> => {
  const { names, box } = placeOf(settings, spec);
  const workspace = spec.workspaceRoot === null ? null : workspacePath(spec.workspaceRoot, spec);
  const input = encodeStepInput(spec, step, workspace ?? HOME_DIRECTORY);
  // systemd itself refuses a step whose anchor is not active (Requisite=); this says which anchor it must be.
  if (!isBoxAlive(box, invocationId)) {
    throw new XceError('sandbox-lost', `the sandbox of lease ${spec.lease} is not the one that was prepared`);
  }
  const unit = names.step(step.step);
  const nonce = randomBytes(8).toString('hex');
  const startLine = `xce-sandbox-start ${nonce}`;
  // Another run under this step id, alive or not, has files of its own.
  const run = `${step.step}.${nonce}`;
  const inputFile = `${box.inputs}/${run}`;
  if (!createFile(inputFile, input, { uid: 0, gid: spec.uid, mode: 0o440 })) {
    throw new XceError('bug', `${inputFile} is there before it is made`);
  }
  let child: PipedChild | undefined;
  try {
    child = spawnPiped(
      SYSTEMD_RUN,
      stepArguments(unitFacts(settings, spec, workspace), step.step, startLine, run),
      { uid: spec.uid, gid: spec.uid },
    );
    const start = await withTimeout(awaitStart(child.stderr, startLine), START_TIMEOUT_MS);
    if (start?.kind === 'started') {
      return runningStep(settings, spec, unit, run, start.invocationId, child);
    }
    if (start === undefined) {
      throw new XceError('timeout', `systemd did not start ${unit} within ${START_TIMEOUT_MS / 1000} s`);
    }
    const end = await child.ended;
    const error = await explainStart(settings, spec, invocationId, run, start.complaint);
    // A client that said no by itself has left no unit; a unit of that name is then another run.
    if (end.exitCode !== undefined || end.spawnErrno !== undefined) {
      closeStreams(child);
      child = undefined;
    }
    throw error;
  } catch (error) {
    if (child !== undefined) await abandon(settings, unit, child);
    throw error;
  } finally {
    removeFile(inputFile);
  }
};

const closeStreams = (child: PipedChild): void => {
  child.stdin.destroy();
  child.stdout.destroy();
  child.stderr.destroy();
};

/** Leaves nothing of a step that could not be handed out. */
const abandon = async (settings: Settings, unit: string, child: PipedChild): Promise<void> => {
  closeStreams(child);
  // The client first: once it is gone it can ask systemd for nothing more.
  child.kill('SIGKILL');
  await child.ended;
  await stopUnits([unit], settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS);
};

const withTimeout = async <T>(promise: Promise<T>, timeoutMs: number): Promise<T | undefined> => {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), timeoutMs);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
};

const runningStep = (
  settings: Settings,
  spec: SandboxSpec,
  unit: string,
  run: string,
  invocationId: string,
  child: PipedChild,
): RunningStep => {
  let isOver = false;
  const ended = child.ended
    .then(() => settle(settings, spec, unit, run, invocationId))
    // A look that fails proves nothing about the step: it counts as lost, which is a failure.
    .catch((): StepResult => LOST)
    .finally(() => {
      isOver = true;
    });
  return {
    unit,
    stdin: child.stdin,
    stdout: child.stdout,
    stderr: child.stderr,
    ended,
    signal: async (signal) => {
      if (!isOver) await signalMain(unit, signal);
    },
    stop: async () => {
      if (!isOver) await stopUnits([unit], settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS);
      await ended;
    },
  };
};
