/** The bond that holds: a timer of the service manager itself ends the sandbox, whoever is dead. */
import type { SandboxNames } from '../names.ts';
import { deadlineArguments } from '../properties.ts';
import { listUnits, showUnit, startTransient, stopUnits } from './manager.ts';

const STOP_TIMEOUT_MS = 30_000;

/** A deadline that has passed fires at once. */
const REMAINING_MS_MIN = 1;

/**
 * Arms the deadline anew. A timer's span cannot be changed, so there are two slots: the new timer runs before
 * the old one goes, and there is no moment without one. After a crash between the two the earlier one counts.
 */
export const armDeadlineTimer = async (names: SandboxNames, remainingMs: number): Promise<void> => {
  const [first, second] = await Promise.all(names.deadlines.map((slot) => showUnit(slot.timer)));
  const firstRuns = first?.activeState === 'active';
  const secondRuns = second?.activeState === 'active';
  // Both run only after such a crash; the first slot is emptied then while the second goes on.
  const slot = firstRuns && !secondRuns ? 1 : 0;
  if (firstRuns && secondRuns) await stopUnits([names.deadlines[0].timer], STOP_TIMEOUT_MS);
  await startTransient(deadlineArguments(names, slot, Math.max(REMAINING_MS_MIN, remainingMs)));
  const old = names.deadlines[slot === 0 ? 1 : 0];
  await stopUnits([old.timer], STOP_TIMEOUT_MS);
};

/** Whether a deadline is armed for the sandbox. */
export const isDeadlineArmed = async (names: SandboxNames): Promise<boolean> => {
  const units = await listUnits(names.unitPattern);
  return names.deadlines.some((slot) =>
    units.some((unit) => unit.name === slot.timer && unit.active === 'active'),
  );
};
