import { showHelp } from '../cli/oclif.ts';

/** Takes words and no flags, not even those that every other command has. */
const help = {
  summary: 'Show what a command does, and its flags.',
  usage: 'help [COMMAND]',
  strict: false,
  run: showHelp,
};

export default help;
