import { cudaDriver } from '../helpers/drivers.js';
import { driverContract } from './driver-contract.js';

driverContract(cudaDriver);
