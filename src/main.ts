/** The whole command line: every command by its name, each loaded only where it is run. */
import type { CommandName } from './cli/command-names.ts';
import { type CommandClass, runCommandLine } from './cli/main.ts';

export const COMMANDS: Readonly<Record<CommandName, () => Promise<{ readonly default: CommandClass }>>> = {
  'config show': () => import('./commands/config/show.ts'),
  epilog: () => import('./commands/epilog.ts'),
  help: () => import('./commands/help.ts'),
  launch: () => import('./commands/launch.ts'),
  'lease allocate': () => import('./commands/lease/allocate.ts'),
  'lease audit': () => import('./commands/lease/audit.ts'),
  'lease compact': () => import('./commands/lease/compact.ts'),
  'lease dump': () => import('./commands/lease/dump.ts'),
  'lease expire': () => import('./commands/lease/expire.ts'),
  'lease init': () => import('./commands/lease/init.ts'),
  'lease list': () => import('./commands/lease/list.ts'),
  'lease probe': () => import('./commands/lease/probe.ts'),
  'lease reclaim': () => import('./commands/lease/reclaim.ts'),
  'lease release': () => import('./commands/lease/release.ts'),
  'lease renew': () => import('./commands/lease/renew.ts'),
  'lease repair': () => import('./commands/lease/repair.ts'),
  'lease show': () => import('./commands/lease/show.ts'),
  'lease takeover': () => import('./commands/lease/takeover.ts'),
  'lease verify': () => import('./commands/lease/verify.ts'),
  'lease watch': () => import('./commands/lease/watch.ts'),
  normalise: () => import('./commands/normalise.ts'),
  'pki init': () => import('./commands/pki/init.ts'),
  'pki issue': () => import('./commands/pki/issue.ts'),
  'pki revoke': () => import('./commands/pki/revoke.ts'),
  prolog: () => import('./commands/prolog.ts'),
  reconcile: () => import('./commands/reconcile.ts'),
  status: () => import('./commands/status.ts'),
  stop: () => import('./commands/stop.ts'),
  'worker metrics': () => import('./commands/worker/metrics.ts'),
};

/** As runCommandLine, which needs nothing more. */
export const main = (argv: readonly string[]): Promise<number | undefined> =>
  runCommandLine(argv, COMMANDS, {
    talk: async () => (await import('./cli/oclif.ts')).OCLIF_TALK,
    colours: async () => (await import('./cli/colours.ts')).terminalColours(),
  });
