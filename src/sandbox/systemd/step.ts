/**
 * One step: a transient service whose standard streams are pipes of ours. systemd gets the other ends and passes
 * them on; no byte goes through a third process. The unit is held in memory until its end has been read.
 */
import { randomBytes } from 'node:crypto';
import { XceError } from '../../base/errors.ts';
import type { LeaseNumber } from '../../base/ids.ts';
import { isCgroupPopulated } from '../../os/cgroup.ts';
import { busErrorOf } from '../../os/dbus.ts';
import { makeStandardPipes, type StandardPipes } from '../../os/pipes.ts';
import { createFile, removeFile } from '../../os/root-files.ts';
import type { StepResult } from '../../rpc/message.ts';
import type { RunningStep, SandboxSpec, StepSpec } from '../backend.ts';
import { stepUnit, type UnitDraft } from '../properties.ts';
import { encodeStepInput } from '../step-input.ts';
import { describeEnd, LOST, toStepResult } from '../step-result.ts';
import { HOME_DIRECTORY } from '../user-record.ts';
import { workspacePaths } from '../workspace.ts';
import { outlived } from './cgroup.ts';
import { type Context, placeOf } from './context.ts';
import { isAnchorAlive, makingOf, stopTimeoutMs, unitFacts } from './sandbox.ts';
import type { Systemd, UnitWatch } from './systemd1.ts';

const isOver = (active: string): boolean => active === 'inactive' || active === 'failed';

/** The outcome of a step that has started, once its unit has no process left. The unit is let go then. */
const awaitEnd = async (systemd: Systemd, unit: string, first: UnitWatch): Promise<StepResult> => {
  let watch = first;
  try {
    for (;;) {
      try {
        while (!isOver((await systemd.readUnit(unit)).activeState)) await watch.next();
        break;
      } catch (error) {
        // The bus was lost. Held again in time, the unit has still everything to say; else this throws.
        if (!watch.isLost) throw error;
        watch.close();
        watch = await systemd.hold(unit);
      }
    }
  } finally {
    watch.close();
  }
  const result = toStepResult(await systemd.readEnd(unit));
  // In this order, without waiting for the first.
  await Promise.all([systemd.resetFailed(unit), systemd.release(unit)]);
  return result;
};

/** Without the bus nobody can say how the step ends: it is ended, as far as that is possible, and lost. */
const giveUp = async (context: Context, unit: string): Promise<StepResult> => {
  try {
    await context.systemd.stop([unit], stopTimeoutMs(context));
  } catch (error) {
    // A unit that cannot be stopped now is bound to the anchor and its deadline, and scan will name it.
    if (!(error instanceof XceError)) throw error;
  }
  return LOST;
};

/** The error for a step that never began. `why` is systemd's own. */
const explainStart = async (
  context: Context,
  spec: SandboxSpec,
  invocationId: string,
  why: XceError,
): Promise<XceError> =>
  (await isAnchorAlive(context.systemd, placeOf(context, spec).names, invocationId))
    ? why
    : new XceError('sandbox-lost', `the sandbox of lease ${spec.lease} ended before the step began`);

/** Lets destroy wait until the units of steps have been let go. */
const keepUnsettled = (context: Context, lease: LeaseNumber, ended: Promise<unknown>): void => {
  const steps = context.unsettled.get(lease) ?? new Set();
  context.unsettled.set(lease, steps.add(ended));
  void ended.finally(() => {
    steps.delete(ended);
    if (steps.size === 0 && context.unsettled.get(lease) === steps) context.unsettled.delete(lease);
  });
};

export const startSandboxStep = async (
  context: Context,
  spec: SandboxSpec,
  invocationId: string,
  step: StepSpec,
): Promise<RunningStep> => {
  const { systemd } = context;
  const { names, box } = placeOf(context, spec);
  const workspace = spec.workspaceRoot === null ? null : workspacePaths(spec.workspaceRoot, spec).directory;
  // systemd itself refuses a step whose anchor is not active (Requisite=); this says which anchor it must be.
  const making = makingOf(box, invocationId);
  if (making === undefined) {
    throw new XceError('sandbox-lost', `the sandbox of lease ${spec.lease} is not the one that was prepared`);
  }
  const { sandbox, environments } = context.settings;
  const profile = environments.find(({ name }) => name === making.allowance.profile);
  const site = { path: sandbox.path, variables: profile?.variables ?? [] };
  const input = encodeStepInput(spec, step, { home: workspace ?? HOME_DIRECTORY, site });
  const unit = names.step(step.step);
  // Another run under this step id, alive or not, has a file of its own.
  const run = `${step.step}.${randomBytes(8).toString('hex')}`;
  const inputFile = `${box.inputs}/${run}`;
  if (!createFile(inputFile, input, { uid: 0, gid: spec.uid, mode: 0o440 })) {
    throw new XceError('bug', `${inputFile} is there before it is made`);
  }
  const draft = stepUnit(unitFacts(context, spec, workspace, making), step.step, run);
  let pipes: StandardPipes | undefined;
  try {
    pipes = makeStandardPipes({ uid: spec.uid, gid: spec.uid });
    const { watch, hasStarted } = await startHeld(context, spec, invocationId, draft, pipes);
    if (!hasStarted) {
      watch.close();
      const end = await systemd.readEnd(unit);
      await systemd.resetFailed(unit);
      await systemd.release(unit);
      const why = new XceError('systemd', `the step did not start: ${describeEnd(end)}`);
      throw await explainStart(context, spec, invocationId, why);
    }
    const ended = awaitEnd(systemd, unit, watch)
      .catch(() => giveUp(context, unit))
      .finally(() => {
        removeFile(inputFile);
      });
    keepUnsettled(context, spec.lease, ended);
    return runningStep(context, { unit, group: `${names.cgroup}/${unit}` }, pipes, ended);
  } catch (error) {
    pipes?.destroy();
    removeFile(inputFile);
    throw error;
  }
};

const startHeld = async (
  context: Context,
  spec: SandboxSpec,
  invocationId: string,
  unit: UnitDraft,
  pipes: StandardPipes,
): ReturnType<Systemd['startTransient']> => {
  try {
    return await context.systemd.startTransient(unit, pipes.ends);
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    if (busErrorOf(error) !== undefined) throw await explainStart(context, spec, invocationId, error);
    // An answer that never came may be a step that runs.
    await giveUp(context, unit.name);
    throw error;
  } finally {
    // systemd has its own copies now, or none: our reader must see the end when the step's last writer goes.
    pipes.closeEnds();
  }
};

const runningStep = (
  context: Context,
  { unit, group }: { readonly unit: string; readonly group: string },
  pipes: StandardPipes,
  ended: Promise<StepResult>,
): RunningStep => {
  let hasEnded = false;
  const settled = ended.finally(() => {
    hasEnded = true;
  });
  return {
    unit,
    stdin: pipes.stdin,
    stdout: pipes.stdout,
    stderr: pipes.stderr,
    ended: settled,
    signal: async (signal) => {
      if (!hasEnded) await context.systemd.signalMain(unit, signal);
    },
    stop: async () => {
      if (!hasEnded) await context.systemd.stop([unit], stopTimeoutMs(context));
      await settled;
      // systemd lets a unit go whose processes have outlived its SIGKILL (flux-framework/flux-core#6501).
      if (isCgroupPopulated(group)) throw outlived(group);
    },
  };
};
