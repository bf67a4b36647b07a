import type { Settings } from '../../config/settings.ts';
import type { SandboxBackend } from '../backend.ts';
import { type Context, placeOf } from './context.ts';
import { armDeadlineTimer } from './deadline.ts';
import { checkHost } from './host.ts';
import { listLeases } from './leases.ts';
import { createSandbox, destroySandbox, isAnchorAlive, stopAllSteps, watchAnchorEnd } from './sandbox.ts';
import { scanHost } from './scan.ts';
import { startSandboxStep } from './step.ts';
import { Systemd } from './systemd1.ts';

/** The backend for hosts whose service manager is systemd 252 or newer. Calls for one lease must not overlap,
 * but for steps and watches. */
export const createSystemdBackend = (settings: Settings): SandboxBackend => {
  const systemd = new Systemd();
  const context: Context = { settings, systemd, unsettled: new Map() };
  return {
    checkHost: () => checkHost(context),
    create: (spec, resources, remainingMs) => createSandbox(context, spec, resources, remainingMs),
    armDeadline: (spec, remainingMs) => armDeadlineTimer(systemd, placeOf(context, spec).names, remainingMs),
    startStep: (spec, invocationId, step) => startSandboxStep(context, spec, invocationId, step),
    stopSteps: (spec) => stopAllSteps(context, spec),
    destroy: (spec) => destroySandbox(context, spec),
    scan: (spec) => scanHost(context, spec),
    listLeases: () => listLeases(context),
    watchEnd: (spec, invocationId, signal) =>
      watchAnchorEnd(systemd, placeOf(context, spec).names, invocationId, signal),
    isAlive: (spec, invocationId) => isAnchorAlive(systemd, placeOf(context, spec).names, invocationId),
  };
};
