import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../cli/context-command.ts';
import {
  countFlag,
  durationFlag,
  leaseSelection,
  outputFlag,
  resourceFlags,
  spellOut,
  splitCommand,
  stdinFlag,
  toResources,
  toSelection,
} from '../cli/flags.ts';
import { finishLaunch, openLaunchSession } from '../cli/launch-session.ts';
import { MPI_LAUNCHERS } from '../mpi/launchers.ts';
import { collectEnvironment } from '../operations/environment.ts';
import { launchJob } from '../operations/launch.ts';

export default class Launch extends ContextCommand {
  static override summary = 'Run a command in the sandbox of a job on every node, or an MPI program.';
  static override description =
    'All nodes are prepared before anything starts; if one refuses, nothing starts. Exit status: that of the first step that failed, 128 plus the number of its signal, or 125 when the launch itself failed.';
  static override usage = 'launch --job ID [OPTIONS] -- COMMAND [ARGUMENT...]';
  static override examples = [
    '<%= config.bin %> launch --job 42 --label -- id',
    '<%= config.bin %> launch --job 42 --mpi -n 6 -- ./hello',
    '<%= config.bin %> launch --job 42 --mpi=hydra -n 6 -- ./hello',
  ];
  static override flags = {
    ...leaseSelection,
    nodes: Flags.string({ description: 'Only these nodes of the lease.', helpValue: 'LIST' }),
    mpi: Flags.option({ options: MPI_LAUNCHERS })({
      description:
        'Start an MPI program from the first node: with prterun (Open MPI 5), mpirun (Open MPI 4), or mpiexec (MPICH); alone: prrte.',
      helpValue: `[${MPI_LAUNCHERS.join('|')}]`,
    }),
    ranks: countFlag({
      char: 'n',
      description: 'MPI: ranks in all; default: one per node.',
      dependsOn: ['mpi'],
    }),
    'mpi-option': Flags.string({
      description: 'MPI: a further word for the launcher, as --mpi-option=--map-by.',
      helpValue: 'WORD',
      multiple: true,
      dependsOn: ['mpi'],
    }),
    'tasks-per-node': countFlag({
      description: 'Run the command so many times on each node; MPI: slots of each node.',
    }),
    'kill-on-bad-exit': Flags.boolean({
      description: 'End all tasks as soon as one ends badly; default: the others go on.',
      default: false,
    }),
    label: Flags.boolean({ char: 'l', description: 'Put the node before each line.' }),
    output: outputFlag({
      char: 'o',
      description: 'Write output to this file, not here; %j job, %a attempt, %n node, %t task.',
    }),
    error: outputFlag({ description: 'Write standard error to this file; default: as --output.' }),
    append: Flags.boolean({
      description: 'Write behind what these files hold; default: none may exist.',
      relationships: [{ type: 'some', flags: ['output', 'error'] }],
    }),
    env: Flags.string({
      char: 'e',
      description: 'Set a variable, or pass one on from here.',
      helpValue: 'NAME[=VALUE]',
      multiple: true,
    }),
    'env-file': Flags.string({
      description: 'Set the variables of a file, NAME=VALUE on each line.',
      helpValue: 'FILE',
      multiple: true,
    }),
    chdir: Flags.string({ description: 'Working directory; default: the workspace.', helpValue: 'DIR' }),
    timeout: durationFlag({ description: 'End the job after this time.' }),
    ...resourceFlags,
    stdin: stdinFlag({ description: 'Who reads standard input: none, all, or a node.' }),
  };

  async run(): Promise<number> {
    const { own, command } = splitCommand(this.argv);
    const { flags } = await this.parse(
      Launch,
      spellOut(own, 'mpi', MPI_LAUNCHERS, { ...Launch.baseFlags, ...Launch.flags }),
    );
    return await this.withContext(flags, async (context) => {
      const result = await launchJob(
        context,
        {
          selection: toSelection(flags),
          nodes: flags.nodes,
          argv: command,
          environment: collectEnvironment(context, {
            files: flags['env-file'] ?? [],
            variables: flags.env ?? [],
          }),
          directory: flags.chdir === undefined ? undefined : Buffer.from(flags.chdir),
          mpi: flags.mpi,
          mpiOptions: flags['mpi-option'] ?? [],
          ranks: flags.ranks,
          tasksPerNode: flags['tasks-per-node'],
          endsOnBadExit: flags['kill-on-bad-exit'],
          output: {
            stdout: flags.output,
            stderr: flags.error,
            mode: flags.append ? 'append' : 'new',
          },
          timeoutMs: flags.timeout,
          resources: toResources(flags),
          stdin: flags.stdin,
        },
        openLaunchSession({
          ...flags,
          withTasks: flags.mpi === undefined && flags['tasks-per-node'] !== undefined,
        }),
      );
      return await finishLaunch(flags, result);
    });
  }
}
