/**
 * The life of one sandbox on its node:
 *
 *   nothing -> box + marker(no id) -> mounts, record, workspace -> slice, anchor, deadline -> marker(id) = ready
 *   ready   -> anchor stopped (deadline, operator, destroy)
 *   any     -> destroy: slice stopped, cgroup empty, mounts, record, box gone
 *
 * A box without id is one of ours whose making was cut short; a unit of our name without box is a stranger's.
 */
import { join } from 'node:path';
import { messageOf, XceError } from '../../base/errors.ts';
import { escapeText } from '../../base/escape.ts';
import type { Uid } from '../../base/ids.ts';
import { isCgroupPopulated } from '../../os/cgroup.ts';
import { mountOf } from '../../os/mounts.ts';
import { kindOf, listDevices, listNames, removeFile, resolvePath } from '../../os/root-files.ts';
import { closeDirectory, openRooted } from '../../os/rooted.ts';
import { pause } from '../../os/watch.ts';
import type { Mount, Resources } from '../../rpc/message.ts';
import type { CreatedSandbox, SandboxSpec } from '../backend.ts';
import type { BoxPaths } from '../box.ts';
import type { SandboxKey, SandboxNames } from '../names.ts';
import {
  anchorUnit,
  EXIT_DROP,
  EXIT_NETWORK,
  EXIT_WORKSPACE,
  sliceUnit,
  type UnitFacts,
} from '../properties.ts';
import { type Allowance, allow } from '../resources.ts';
import { describeEnd, type ServiceEnd } from '../step-result.ts';
import { killCgroup, outlived, requireControllers, verifyLimits } from './cgroup.ts';
import { type Context, type Place, placeOf } from './context.ts';
import { armDeadlineTimer } from './deadline.ts';
import { digestOf, type Making, type Marker, readMarker, writeMarker } from './marker.ts';
import { reachOf } from './network.ts';
import {
  boxExists,
  checkVisible,
  checkWritablePath,
  makeBox,
  makeWorkspace,
  mountBox,
  removeBox,
  removeUserRecord,
  writeUserRecord,
} from './place.ts';
import type { Systemd } from './systemd1.ts';

/** Beside the grace of the units, for systemd itself. */
const STOP_MARGIN_MS = 20_000;
/** Between two tries to reach a system bus that is gone. */
const RECONNECT_MS = 2_000;
const TRANSIENT_DIRECTORY = '/run/systemd/transient';

export type SandboxIdentity = SandboxKey & { readonly uid: Uid };

/** How long a stop may take before it is given up. */
export const stopTimeoutMs = (context: Context): number =>
  context.settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS;

/** Everything the unit properties say, looked up on this host. */
export const unitFacts = (
  context: Context,
  spec: SandboxSpec,
  workspace: string | null,
  { allowance, network }: Making,
): UnitFacts => {
  const resolver = resolvePath('/etc/resolv.conf');
  return {
    uid: spec.uid,
    ...placeOf(context, spec),
    workspace,
    writablePaths: spec.writablePaths,
    allowance,
    devices: allowance.devices.flatMap(listDevices),
    network,
    resolverFiles: resolver?.startsWith('/run/') === true ? [resolver] : [],
    settings: context.settings.sandbox,
  };
};

const mountFacts = (path: string): Mount => {
  const directory = openRooted(path, 'anyones');
  try {
    const { source, type, fsid } = mountOf(directory.fd);
    return { path, source, type, fsid };
  } finally {
    closeDirectory(directory);
  }
};

const listMounts = (spec: SandboxSpec): readonly Mount[] =>
  [...(spec.workspaceRoot === null ? [] : [spec.workspaceRoot]), ...spec.writablePaths].map(mountFacts);

/** Files of units that systemd no longer has in memory, in the directory of transient units. */
export const listTransientFiles = (prefix: string): readonly string[] =>
  listNames(TRANSIENT_DIRECTORY).filter((name) => name.startsWith(prefix));

/** Removes remains of units that are not running: failures, and files without a unit. */
const forgetUnits = async (systemd: Systemd, names: SandboxNames): Promise<void> => {
  const units = await systemd.listUnits(names.unitPattern);
  const failed = units.filter((unit) => unit.active === 'failed');
  await Promise.all(failed.map((unit) => systemd.resetFailed(unit.name)));
  const files = listTransientFiles(names.unitPrefix);
  if (files.length === 0) return;
  const loaded = new Set((await systemd.listUnits(names.unitPattern)).map((unit) => unit.name));
  const left = files.filter((file) => !loaded.has(file.replace(/\.d$/, '')));
  if (left.length === 0) return;
  for (const file of left) {
    const path = join(TRANSIENT_DIRECTORY, file);
    if (kindOf(path) === 'directory') {
      for (const name of listNames(path)) removeFile(join(path, name));
    } else removeFile(path);
  }
  await systemd.reload();
};

const isRunning = (active: string): boolean => active !== 'inactive' && active !== 'failed';

/** Refuses when a unit of our names runs that this worker has not made. */
const refuseForeignUnits = async (systemd: Systemd, names: SandboxNames): Promise<void> => {
  const foreign = (await systemd.listUnits(names.unitPattern)).find((unit) => isRunning(unit.active));
  if (foreign !== undefined) {
    throw new XceError('sandbox-exists', `unit ${foreign.name} is ${foreign.active} and not ours`, {
      at: foreign.name,
    });
  }
};

/** Why the anchor did not come up. */
const explainAnchor = (end: ServiceEnd): XceError => {
  if (end.code === 1 && end.status === EXIT_WORKSPACE) {
    return new XceError('sandbox-refused', 'the execution uid cannot reach or write the workspace');
  }
  if (end.code === 1 && end.status === EXIT_NETWORK) {
    return new XceError(
      'resource-unsupported',
      'this node cannot keep a job from reaching other hosts: its kernel or its container has no BPF for control groups',
      { next: '[sandbox] network = open' },
    );
  }
  if (end.code === 1 && end.status === EXIT_DROP) {
    return new XceError('sandbox-refused', 'the drop of privileges is not what it should be');
  }
  return new XceError('systemd', `the sandbox could not be set up: ${describeEnd(end)}`);
};

/** What systemd really made of the anchor; its invocation id. */
const checkAnchor = async (systemd: Systemd, spec: SandboxSpec, anchor: string): Promise<string> => {
  const [state, identity] = await Promise.all([systemd.readUnit(anchor), systemd.readIdentity(anchor)]);
  if (state.loadState !== 'loaded' || state.activeState !== 'active') {
    throw new XceError('systemd', `${anchor} is ${state.loadState}, ${state.activeState} after its start`);
  }
  if (identity.uid !== spec.uid || identity.gid !== spec.uid) {
    throw new XceError(
      'systemd',
      `${anchor} has uid ${identity.uid} and gid ${identity.gid}, not ${spec.uid}`,
    );
  }
  if (!/^[0-9a-f]{32}$/.test(state.invocationId))
    throw new XceError('systemd', `${anchor} has no invocation id`);
  return state.invocationId;
};

const startAnchor = async (
  context: Context,
  spec: SandboxSpec,
  workspace: string | null,
  making: Making,
  remainingMs: number,
): Promise<string> => {
  const { systemd } = context;
  const { names } = placeOf(context, spec);
  const description = `xce-sandbox ${spec.instance}: job ${escapeText(spec.job)}, attempt ${spec.attempt}`;
  await systemd.startSlice(sliceUnit(names, description, making.allowance));
  const anchor = await systemd.startTransient(anchorUnit(unitFacts(context, spec, workspace, making)));
  try {
    if (!anchor.hasStarted) throw explainAnchor(await systemd.readEnd(names.anchor));
    verifyLimits(names.cgroup, making.allowance);
    const [invocationId] = await Promise.all([
      checkAnchor(systemd, spec, names.anchor),
      armDeadlineTimer(systemd, names, remainingMs),
    ]);
    return invocationId;
  } finally {
    anchor.watch.close();
    await systemd.release(names.anchor);
  }
};

const build = async (
  context: Context,
  spec: SandboxSpec,
  allowance: Allowance,
  remainingMs: number,
): Promise<CreatedSandbox> => {
  const { settings, systemd } = context;
  const { names, box } = placeOf(context, spec);
  const digest = digestOf(spec, allowance);
  const making: Making = { allowance, network: await reachOf(settings, spec) };
  makeBox(settings.worker.runDirectory, box);
  writeMarker(box, { ...making, digest, invocationId: null });
  writeUserRecord(spec);
  const workspace = makeWorkspace(spec);
  await Promise.all([mountBox(box, spec, settings.sandbox), forgetUnits(systemd, names)]);
  const invocationId = await startAnchor(context, spec, workspace, making, remainingMs);
  writeMarker(box, { ...making, digest, invocationId });
  return { unit: names.anchor, invocationId, created: true, workspace, mounts: listMounts(spec) };
};

/** The sandbox that is there, if it is ours and alive. Throws 'sandbox-exists' for one with other terms. */
const findEqual = async (
  systemd: Systemd,
  spec: SandboxSpec,
  allowance: Allowance,
  place: Place,
  marker: Marker | undefined,
): Promise<string | undefined> => {
  if (marker === undefined || marker.invocationId === null) return undefined;
  if (!(await isAnchorAlive(systemd, place.names, marker.invocationId))) return undefined;
  if (marker.digest !== digestOf(spec, allowance)) {
    throw new XceError('sandbox-exists', `lease ${spec.lease} has a sandbox with other terms on this node`);
  }
  return marker.invocationId;
};

export const createSandbox = async (
  context: Context,
  spec: SandboxSpec,
  resources: Resources,
  remainingMs: number,
): Promise<CreatedSandbox> => {
  const { systemd } = context;
  const place = placeOf(context, spec);
  const allowance = allow(context.settings, resources);
  requireControllers(allowance);
  if (spec.workspaceRoot !== null) checkVisible(spec.workspaceRoot);
  for (const path of spec.writablePaths) checkWritablePath(path);
  if (boxExists(place.box)) {
    const invocationId = await findEqual(systemd, spec, allowance, place, readMarker(place.box));
    if (invocationId !== undefined) {
      const workspace = makeWorkspace(spec);
      await armDeadlineTimer(systemd, place.names, remainingMs);
      return { unit: place.names.anchor, invocationId, created: false, workspace, mounts: listMounts(spec) };
    }
    await destroySandbox(context, spec);
  }
  await refuseForeignUnits(systemd, place.names);
  try {
    return await build(context, spec, allowance, remainingMs);
  } catch (error) {
    try {
      await destroySandbox(context, spec);
    } catch (second) {
      // The first failure is the one to report; what stayed is for scan to name.
      const code = error instanceof XceError ? error.code : 'systemd';
      const message = `${messageOf(error)}; and it could not be undone: ${messageOf(second)}`;
      throw new XceError(code, message, { cause: error });
    }
    throw error;
  }
};

/** Whether the anchor of that invocation is active now. */
export const isAnchorAlive = async (
  systemd: Systemd,
  names: SandboxNames,
  invocationId: string,
): Promise<boolean> => {
  const anchor = await systemd.readUnit(names.anchor);
  return anchor.activeState === 'active' && anchor.invocationId === invocationId;
};

/** What the sandbox was made with, if the box says that its anchor is the one of that invocation. */
export const makingOf = (box: BoxPaths, invocationId: string): Making | undefined => {
  const marker = readMarker(box);
  return marker?.invocationId === invocationId ? marker : undefined;
};

/**
 * Resolves when the anchor of that invocation is no longer active, or the signal aborts. Sleeps until systemd
 * says that the unit has changed; while the system bus is gone it tries again now and then.
 */
export const watchAnchorEnd = async (
  systemd: Systemd,
  names: SandboxNames,
  invocationId: string,
  signal: AbortSignal,
): Promise<void> => {
  while (!signal.aborted) {
    try {
      const watch = await systemd.watch(names.anchor);
      try {
        while (!signal.aborted) {
          if (!(await isAnchorAlive(systemd, names, invocationId))) return;
          await watch.next(signal);
        }
      } finally {
        watch.close();
      }
    } catch (error) {
      if (!(error instanceof XceError)) throw error;
      // Nothing is known without the bus.
      await pause(RECONNECT_MS, signal);
    }
  }
};

const endUnits = async (context: Context, { names }: Place): Promise<void> => {
  const { systemd } = context;
  const units = (await systemd.listUnits(names.unitPattern)).filter((unit) => isRunning(unit.active));
  // The slice with everything in it first: a deadline that is still armed does no harm.
  const isDeadline = (name: string): boolean =>
    names.deadlines.some((slot) => name === slot.timer || name === slot.service);
  const inside = units.map((unit) => unit.name).filter((name) => !isDeadline(name));
  const timers = units.map((unit) => unit.name).filter(isDeadline);
  await systemd.stop(inside, stopTimeoutMs(context));
  await systemd.stop(timers, STOP_MARGIN_MS);
};

/**
 * Ends everything of the sandbox and removes what it had on this node. Idempotent. Without a box it only removes
 * the user record: nothing else here was made by us. Throws 'node-dirty' while a process outlives every kill; what
 * else stays is for scan to name.
 */
export const destroySandbox = async (context: Context, spec: SandboxIdentity): Promise<void> => {
  const place = placeOf(context, spec);
  if (boxExists(place.box)) {
    await endUnits(context, place);
    if (isCgroupPopulated(place.names.cgroup)) await killCgroup(place.names.cgroup);
    // They hold the mounts and the name.
    if (isCgroupPopulated(place.names.cgroup)) throw outlived(place.names.cgroup);
    // Steps of this process let go of their units when they have read how they ended.
    await Promise.allSettled(context.unsettled.get(spec.lease) ?? []);
    await forgetUnits(context.systemd, place.names);
  }
  removeUserRecord(spec);
  await removeBox(place.box);
};

/**
 * Ends every step of a sandbox that lives on, also steps that an earlier worker has started. Throws 'node-dirty'
 * while a process outlives that.
 */
export const stopAllSteps = async (context: Context, spec: SandboxKey): Promise<void> => {
  const { names } = placeOf(context, spec);
  const steps = (await context.systemd.listUnits(names.unitPattern))
    .map((unit) => unit.name)
    .filter((name) => name.startsWith(`${names.base}.step.`));
  await context.systemd.stop(steps, stopTimeoutMs(context));
  await Promise.allSettled(context.unsettled.get(spec.lease) ?? []);
  const left = steps.map((step) => `${names.cgroup}/${step}`).find(isCgroupPopulated);
  if (left !== undefined) throw outlived(left);
};
