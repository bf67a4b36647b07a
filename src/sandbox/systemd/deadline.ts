/** The bond that holds: a timer of the service manager itself ends the sandbox, whoever is dead. */
import type { SandboxNames } from '../names.ts';
import { deadlineUnits } from '../properties.ts';
import type { Systemd } from './systemd1.ts';

const STOP_TIMEOUT_MS = 30_000;

/**
 * Arms the deadline anew: so many milliseconds from now, at once if none are left. A timer's span cannot be
 * changed, so there are two slots: the new timer runs before the old one goes, and there is no moment without
 * one. After a crash between the two the earlier one counts.
 */
export const armDeadlineTimer = async (
  systemd: Systemd,
  names: SandboxNames,
  remainingMs: number,
): Promise<void> => {
  const states = await Promise.all(names.deadlines.map((slot) => systemd.readUnit(slot.timer)));
  const [firstRuns, secondRuns] = states.map((state) => state.activeState === 'active');
  // Both run only after such a crash; the first slot is emptied then while the second goes on.
  if (firstRuns === true && secondRuns === true) {
    await systemd.stop([names.deadlines[0].timer], STOP_TIMEOUT_MS);
  }
  const slot = firstRuns === true && secondRuns !== true ? 1 : 0;
  await systemd.startTimer(...deadlineUnits(names, slot, remainingMs));
  if (firstRuns === true || secondRuns === true) {
    await systemd.stop([names.deadlines[slot === 0 ? 1 : 0].timer], STOP_TIMEOUT_MS);
  }
};
