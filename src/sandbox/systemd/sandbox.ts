/**
 * The life of one sandbox on its node:
 *
 *   nothing -> box + marker(no id) -> mounts, record, workspace -> slice, anchor, deadline -> marker(id) = ready
 *   ready   -> anchor stopped (deadline, operator, destroy) -> its last hook writes `result/anchor.end`
 *   any     -> destroy: slice stopped, cgroup empty, mounts, record, box gone
 *
 * A box without id is one of ours whose making was cut short; a unit of our name without box is a stranger's.
 */
import { join } from 'node:path';
import { XceError } from '../../base/errors.ts';
import { escapeText } from '../../base/escape.ts';
import type { Uid } from '../../base/ids.ts';
import type { Settings } from '../../config/settings.ts';
import { isCgroupPopulated } from '../../os/cgroup.ts';
import { mountOf } from '../../os/mounts.ts';
import {
  kindOf,
  listDevices,
  listNames,
  readFileIfThere,
  removeFile,
  resolvePath,
} from '../../os/root-files.ts';
import { closeDirectory, openRooted } from '../../os/rooted.ts';
import { waitUntil } from '../../os/watch.ts';
import type { Mount } from '../../rpc/message.ts';
import type { CreatedSandbox, SandboxSpec } from '../backend.ts';
import { type BoxPaths, boxPaths } from '../box.ts';
import { type SandboxKey, type SandboxNames, sandboxNames } from '../names.ts';
import {
  ANCHOR_RECORD,
  anchorArguments,
  EXIT_DROP,
  EXIT_WORKSPACE,
  resultFile,
  sliceArguments,
  type UnitFacts,
} from '../properties.ts';
import { describeResult, parseUnitRecord, RECORD_BYTES_MAX } from '../step-result.ts';
import { killCgroup } from './cgroup.ts';
import { armDeadlineTimer } from './deadline.ts';
import {
  callBus,
  listUnits,
  reloadManager,
  resetFailed,
  showUnit,
  startTransient,
  stopUnits,
} from './manager.ts';
import { digestOf, type Marker, readMarker, writeMarker } from './marker.ts';
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

/** Beside the grace of the units, for systemd itself. */
const STOP_MARGIN_MS = 20_000;
const TRANSIENT_DIRECTORY = '/run/systemd/transient';

export type SandboxIdentity = SandboxKey & { readonly uid: Uid };

/** What is needed to address a sandbox. */
export type Place = { readonly names: SandboxNames; readonly box: BoxPaths };

export const placeOf = (settings: Settings, key: SandboxKey): Place => ({
  names: sandboxNames(key),
  box: boxPaths(settings.worker.runDirectory, key.lease),
});

/** Everything the unit properties say, looked up on this host. */
export const unitFacts = (settings: Settings, spec: SandboxSpec, workspace: string | null): UnitFacts => {
  const resolver = resolvePath('/etc/resolv.conf');
  return {
    uid: spec.uid,
    ...placeOf(settings, spec),
    workspace,
    writablePaths: spec.writablePaths,
    devices: settings.sandbox.devices.flatMap(listDevices),
    resolverFiles: resolver?.startsWith('/run/') === true ? [resolver] : [],
    settings: settings.sandbox,
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

/** Files of units that systemd no longer has in memory, in the directory of transient units. */
export const listTransientFiles = (prefix: string): readonly string[] =>
  listNames(TRANSIENT_DIRECTORY).filter((name) => name.startsWith(prefix));

/** Removes remains of units that are not running: failures, and files without a unit. */
const forgetUnits = async (names: SandboxNames): Promise<void> => {
  await resetFailed(names.unitPattern);
  const files = listTransientFiles(names.unitPrefix);
  if (files.length === 0) return;
  const loaded = new Set((await listUnits(names.unitPattern)).map((unit) => unit.name));
  const left = files.filter((file) => !loaded.has(file.replace(/\.d$/, '')));
  if (left.length === 0) return;
  for (const file of left) {
    const path = join(TRANSIENT_DIRECTORY, file);
    if (kindOf(path) === 'directory') {
      for (const name of listNames(path)) removeFile(join(path, name));
    } else removeFile(path);
  }
  await reloadManager();
};

const isRunning = (active: string): boolean => active !== 'inactive' && active !== 'failed';

/** Refuses when a unit of our names runs that this worker has not made. */
const refuseForeignUnits = async (names: SandboxNames): Promise<void> => {
  const foreign = (await listUnits(names.unitPattern)).find((unit) => isRunning(unit.active));
  if (foreign !== undefined) {
    throw new XceError('sandbox-exists', `unit ${foreign.name} is ${foreign.active} and not ours`, {
      at: foreign.name,
    });
  }
};

/** Why the anchor did not come up, from its own last words if there are any. */
const explainAnchor = (box: BoxPaths, error: XceError): XceError => {
  const bytes = readFileIfThere(resultFile(box, ANCHOR_RECORD), RECORD_BYTES_MAX);
  const record = bytes === undefined ? undefined : parseUnitRecord(bytes, false);
  if (record === undefined) return error;
  const { result } = record;
  if (result.code === 'exited' && result.status === EXIT_WORKSPACE) {
    return new XceError('sandbox-refused', 'the execution uid cannot reach or write the workspace');
  }
  if (result.code === 'exited' && result.status === EXIT_DROP) {
    return new XceError('sandbox-refused', 'the drop of privileges is not what it should be');
  }
  return new XceError('systemd', `the sandbox could not be set up: ${describeResult(result)}`, {
    cause: error,
  });
};

const checkAnchor = async (spec: SandboxSpec, names: SandboxNames): Promise<string> => {
  const anchor = await showUnit(names.anchor);
  if (anchor.loadState !== 'loaded' || anchor.activeState !== 'active') {
    throw new XceError(
      'systemd',
      `${names.anchor} is ${anchor.loadState}, ${anchor.activeState} after its start`,
    );
  }
  if (anchor.uid !== spec.uid || anchor.gid !== spec.uid) {
    throw new XceError(
      'systemd',
      `${names.anchor} has uid ${anchor.uid} and gid ${anchor.gid}, not ${spec.uid}`,
    );
  }
  if (!/^[0-9a-f]{32}$/.test(anchor.invocationId)) {
    throw new XceError('systemd', `${names.anchor} has no invocation id`);
  }
  return anchor.invocationId;
};

const build = async (
  settings: Settings,
  spec: SandboxSpec,
  remainingMs: number,
  place: Place,
): Promise<CreatedSandbox> => {
  const { names, box } = place;
  const digest = digestOf(spec);
  makeBox(settings.worker.runDirectory, box);
  writeMarker(box, { digest, invocationId: null });
  writeUserRecord(spec);
  const workspace = makeWorkspace(spec);
  await mountBox(box, spec, settings.sandbox);
  await forgetUnits(names);
  const description = `xce-sandbox ${spec.instance}: job ${escapeText(spec.job)}, attempt ${spec.attempt}`;
  await callBus(sliceArguments(names, description, settings.sandbox));
  try {
    await startTransient(anchorArguments(unitFacts(settings, spec, workspace)));
  } catch (error) {
    throw error instanceof XceError ? explainAnchor(box, error) : error;
  }
  const [invocationId] = await Promise.all([checkAnchor(spec, names), armDeadlineTimer(names, remainingMs)]);
  writeMarker(box, { digest, invocationId });
  return { unit: names.anchor, invocationId, created: true, workspace, mounts: listMounts(spec) };
};

const listMounts = (spec: SandboxSpec): readonly Mount[] =>
  [...(spec.workspaceRoot === null ? [] : [spec.workspaceRoot]), ...spec.writablePaths].map(mountFacts);

/** The sandbox that is there, if it is ours and alive. Throws 'sandbox-exists' for one with other terms. */
const findEqual = async (
  spec: SandboxSpec,
  place: Place,
  marker: Marker | undefined,
): Promise<string | undefined> => {
  if (marker === undefined || marker.invocationId === null) return undefined;
  if (!(await isAnchorAlive(place.names, marker.invocationId))) return undefined;
  if (marker.digest !== digestOf(spec)) {
    throw new XceError('sandbox-exists', `lease ${spec.lease} has a sandbox with other terms on this node`);
  }
  return marker.invocationId;
};

export const createSandbox = async (
  settings: Settings,
  spec: SandboxSpec,
  remainingMs: number,
): Promise<CreatedSandbox> => {
  const place = placeOf(settings, spec);
  if (spec.workspaceRoot !== null) checkVisible(spec.workspaceRoot);
  for (const path of spec.writablePaths) checkWritablePath(path);
  if (boxExists(place.box)) {
    const invocationId = await findEqual(spec, place, readMarker(place.box));
    if (invocationId !== undefined) {
      const workspace = makeWorkspace(spec);
      await armDeadlineTimer(place.names, remainingMs);
      return { unit: place.names.anchor, invocationId, created: false, workspace, mounts: listMounts(spec) };
    }
    await destroySandbox(settings, spec);
  }
  await refuseForeignUnits(place.names);
  try {
    return await build(settings, spec, remainingMs, place);
  } catch (error) {
    try {
      await destroySandbox(settings, spec);
    } catch (second) {
      // The first failure is the one to report; what stayed is for scan to name.
      const code = error instanceof XceError ? error.code : 'systemd';
      const message = `${messageOf(error)}; and it could not be undone: ${messageOf(second)}`;
      throw new XceError(code, message, { cause: error });
    }
    throw error;
  }
};

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Whether the anchor of that invocation is active now. */
export const isAnchorAlive = async (names: SandboxNames, invocationId: string): Promise<boolean> => {
  const anchor = await showUnit(names.anchor);
  return anchor.activeState === 'active' && anchor.invocationId === invocationId;
};

/** Whether the box still belongs to that invocation and its anchor has not said its last words. No child. */
export const isBoxAlive = (box: BoxPaths, invocationId: string): boolean =>
  readMarker(box)?.invocationId === invocationId && kindOf(resultFile(box, ANCHOR_RECORD)) === 'none';

/**
 * Resolves when the anchor of that invocation is no longer active, or the signal aborts. Sleeps in inotify on
 * the directory where the anchor's last hook writes; nothing runs while nothing happens.
 */
export const watchAnchorEnd = async (
  place: Place,
  invocationId: string,
  signal: AbortSignal,
): Promise<void> => {
  if (signal.aborted || !isBoxAlive(place.box, invocationId)) return;
  const local = new AbortController();
  const ended = waitUntil(place.box.results, () => !isBoxAlive(place.box, invocationId), {
    signal: AbortSignal.any([signal, local.signal]),
  });
  // systemd's word once the watch stands: it also covers a last hook that could not run.
  const alive = isAnchorAlive(place.names, invocationId).then((yes) => {
    if (!yes) local.abort();
  });
  try {
    await Promise.all([ended, alive]);
  } finally {
    local.abort();
  }
};

const endUnits = async (settings: Settings, place: Place): Promise<void> => {
  const { names } = place;
  const units = (await listUnits(names.unitPattern)).filter((unit) => unit.load === 'loaded');
  if (units.length > 0) {
    // The slice with everything in it first: a deadline that is still armed does no harm.
    const isDeadline = (name: string): boolean =>
      names.deadlines.some((slot) => name === slot.timer || name === slot.service);
    const inside = units.map((unit) => unit.name).filter((name) => !isDeadline(name));
    const timers = units.map((unit) => unit.name).filter(isDeadline);
    await stopUnits(inside, settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS);
    await stopUnits(timers, STOP_MARGIN_MS);
  }
  if (isCgroupPopulated(names.cgroup)) await killCgroup(names.cgroup);
  await forgetUnits(names);
};

/**
 * Ends everything of the sandbox and removes what it had on this node. Idempotent. Without a box it only removes
 * the user record: nothing else here was made by us. What stays is for scan to name.
 */
export const destroySandbox = async (settings: Settings, spec: SandboxIdentity): Promise<void> => {
  const place = placeOf(settings, spec);
  if (boxExists(place.box)) {
    await endUnits(settings, place);
    // Processes that outlived systemd's kill hold the mounts and the name: they are left for scan.
    if (isCgroupPopulated(place.names.cgroup)) return;
  }
  removeUserRecord(spec);
  await removeBox(place.box);
};

/** Ends every step of a sandbox that lives on, also steps that an earlier worker has started. */
export const stopAllSteps = async (settings: Settings, spec: SandboxKey): Promise<void> => {
  const { names } = placeOf(settings, spec);
  const steps = (await listUnits(names.unitPattern))
    .map((unit) => unit.name)
    .filter((name) => name.startsWith(`${names.base}.step.`));
  await stopUnits(steps, settings.sandbox.stopTimeoutMs + STOP_MARGIN_MS);
};
