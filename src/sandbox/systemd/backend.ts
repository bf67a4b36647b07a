import type { Settings } from '../../config/settings.ts';
import type { SandboxBackend } from '../backend.ts';
import { armDeadlineTimer } from './deadline.ts';
import { checkHost } from './host.ts';
import {
  createSandbox,
  destroySandbox,
  isAnchorAlive,
  placeOf,
  stopAllSteps,
  watchAnchorEnd,
} from './sandbox.ts';
import { scanHost } from './scan.ts';
import { startSandboxStep } from './step.ts';

/** The backend for hosts whose service manager is systemd 252 or newer. Calls for one lease must not overlap,
 * but for steps and watches. */
export const createSystemdBackend = (settings: Settings): SandboxBackend => ({
  checkHost: () => checkHost(settings),
  create: (spec, remainingMs) => createSandbox(settings, spec, remainingMs),
  armDeadline: (spec, remainingMs) => armDeadlineTimer(placeOf(settings, spec).names, remainingMs),
  startStep: (spec, invocationId, step) => startSandboxStep(settings, spec, invocationId, step),
  stopSteps: (spec) => stopAllSteps(settings, spec),
  destroy: (spec) => destroySandbox(settings, spec),
  scan: (spec) => scanHost(settings, spec),
  watchEnd: (spec, invocationId, signal) => watchAnchorEnd(placeOf(settings, spec), invocationId, signal),
  isAlive: (spec, invocationId) => isAnchorAlive(placeOf(settings, spec).names, invocationId),
});
