import { mockDriver, mockDriverWithoutMemory, mockDriverWithSlowWaits } from '../helpers/drivers.js';
import { driverContract } from './driver-contract.js';

driverContract(mockDriver);
driverContract(mockDriverWithoutMemory);
driverContract(mockDriverWithSlowWaits);
